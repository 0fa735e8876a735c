"""A joint commit is atomic under a power cut at any step, and its sequence tells the outcome."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from itertools import count

import pytest
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.transactions.joint_commit_support import commit, sequence, writing
from tests.unit.broker.transactions.transaction_support import NEWER, OLDER, Transactor, partition_contents, restarted

from headrace.broker.transactions.transactions_log import TransactionsLog
from headrace.machines.transactions.joint_commits import JointCommit
from headrace.machines.transactions.transaction_state import TransactionMetadata
from headrace.model.errors import ConcurrentTransactions
from headrace.testkit.disk import SimulatedPowerCut
from headrace.testkit.world import World

STORE = TransactionsLog.store
SEQUENCES = 2
VALUES = (b"a", b"b")


class Script:
    """Two joint commits of two members in two partitions each, a late member, and the received responses."""

    def __init__(self, simulated_broker: SimulatedBroker, generation: int) -> None:
        self.simulated_broker = simulated_broker
        self.generation = generation
        self.requested = dict[int, list[Transactor]]()
        self.acknowledged = -1

    async def run(self) -> None:
        for number in range(SEQUENCES):
            members = [
                await writing(
                    self.simulated_broker, str(which), b"%d%s" % (number, value), 0, 1, generation=self.generation
                )
                for which, value in enumerate(VALUES)
            ]
            await writing(self.simulated_broker, "straggler", b"never", 0, generation=self.generation)
            self.requested[number] = members
            assert await commit(self.simulated_broker, number, *members) is True
            self.acknowledged = number


async def is_over(simulated_broker: SimulatedBroker, script: Script) -> bool:
    """Whether the script came to its end before the power went: it runs where the broker runs, and dies with it."""
    running = simulated_broker.host.start(script.run(), "script")
    await asyncio.wait([running], timeout=5)
    if not running.done() or isinstance(running.exception(), SimulatedPowerCut):
        return False
    running.result()
    return True


async def committed(simulated_broker: SimulatedBroker) -> list[list[bytes]]:
    found = []
    for partition in (0, 1):
        result = await partition_contents(simulated_broker, partition=partition)
        assert b"never" not in result.committed
        found.append(result.committed)
    return found


def whole(last: int) -> list[bytes]:
    return [b"%d%s" % (number, value) for number in range(last + 1) for value in VALUES]


async def check(simulated_broker: SimulatedBroker, script: Script) -> None:
    await restarted(simulated_broker)
    last = await sequence(simulated_broker)
    assert script.acknowledged <= last <= max(script.requested, default=-1)
    assert [sorted(values) for values in await committed(simulated_broker)] == [whole(last)] * 2, "it is torn"
    for number, members in script.requested.items():
        # A driver without a response retries, and the result of the retry holds.
        while (response := await commit(simulated_broker, number, *members)) == ConcurrentTransactions.code:
            await asyncio.sleep(0.1)
        assert response is True or number < max(script.requested)
    last = await sequence(simulated_broker)
    assert last == max(script.requested, default=-1)
    if script.requested:
        assert await commit(simulated_broker, last + 1) is True
        assert [sorted(values) for values in await committed(simulated_broker)] == [whole(last)] * 2
        assert not (await partition_contents(simulated_broker)).open


def is_cut(generation: int, operations: int) -> bool:
    """Whether so many operations of the disk were fewer than the script takes. Whatever was cut off must not matter."""
    world = World(seed=operations)
    try:
        simulated_broker = SimulatedBroker(world, {"transaction.state.log.num.partitions": "1"})
        world.run(simulated_broker.open())
        world.run(simulated_broker.create_topic("t", 2))
        world.run(writing(simulated_broker, "0", b""))  # the log is there
        script = Script(simulated_broker, generation)
        simulated_broker.host.disk.crash_after(operations)
        is_done = world.run(is_over(simulated_broker, script))
        if is_done:
            simulated_broker.kill(keep_page_cache=False)
        simulated_broker.registry.crash()
        world.run(check(simulated_broker, script))
        world.run(simulated_broker.pass_time(1))
        simulated_broker.check()
        return not is_done
    finally:
        world.close()


def cut_everywhere(generation: int) -> int:
    try:
        return next(operations for operations in count() if not is_cut(generation, operations))
    finally:
        gc.collect()  # of the failures that nobody lived to see; else they would be reported when the tests are over


@pytest.mark.parametrize("generation", [OLDER, NEWER])
def test_a_joint_commit_is_atomic_under_power_cuts(generation: int) -> None:
    assert cut_everywhere(generation) > 30, "there was hardly anything to cut"


# The controls: what the test above is there to find


def store_each(
    self: TransactionsLog, transactions: Sequence[TransactionMetadata], bundle: JointCommit | None = None
) -> int:
    ends = [STORE(self, [transaction]) for transaction in transactions]
    return ends[-1] if bundle is None else STORE(self, [], bundle)


def store_the_sequence_first(
    self: TransactionsLog, transactions: Sequence[TransactionMetadata], bundle: JointCommit | None = None
) -> int:
    end_offset = 0 if bundle is None else STORE(self, [], bundle)
    return STORE(self, transactions) if transactions else end_offset


@pytest.mark.parametrize("store", [store_each, store_the_sequence_first])
def test_a_joint_commit_stored_by_several_appends_would_not_be_atomic(
    store: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransactionsLog, "store", store)
    with pytest.raises(AssertionError):
        cut_everywhere(NEWER)
