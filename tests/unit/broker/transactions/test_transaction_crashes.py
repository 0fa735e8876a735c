"""Transactions are atomic under a power cut at any step, and acknowledged outcomes hold."""

from __future__ import annotations

import asyncio
import gc
from itertools import count

import pytest
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.transactions.transaction_support import (
    NEWER,
    OLDER,
    Transactor,
    partition_contents,
    restarted,
    state,
)

from headrace.model.errors import ConcurrentTransactions
from headrace.testkit.disk import SimulatedPowerCut
from headrace.testkit.world import World

OUTCOMES = [True, False, True]


class Script:
    """Three transactions over two partitions, and the responses that the producer got."""

    def __init__(self, simulated_broker: SimulatedBroker, generation: int) -> None:
        self.producer = Transactor(simulated_broker, generation=generation)
        self.requested: dict[bytes, bool] = {}
        self.acknowledged: dict[bytes, bool] = {}
        self.sent: set[tuple[bytes, int]] = set()

    async def run(self) -> None:
        for number, commit in enumerate(OUTCOMES):
            label = b"%d" % number
            for partition in (0, 1):
                assert await self.producer.send(label, partition=partition) == 0
                self.sent.add((label, partition))
            self.requested[label] = commit
            assert await self.producer.end(commit=commit) == 0
            self.acknowledged[label] = commit

    async def end_again(self) -> None:
        """Retry after a lost response until there is a response."""
        ((label, commit),) = self.requested.items() - self.acknowledged.items()
        while (code := await self.producer.end(commit=commit)) == ConcurrentTransactions.code:
            await asyncio.sleep(0.1)
        assert code == 0
        self.acknowledged[label] = commit


async def check(simulated_broker: SimulatedBroker, script: Script) -> None:
    fates: dict[bytes, set[str]] = {}
    for partition in (0, 1):
        result = await partition_contents(simulated_broker, partition=partition)
        assert not result.open
        for fate in ("committed", "aborted"):
            for value in getattr(result, fate):
                fates.setdefault(value, set()).add(fate)
        for label, commit in script.acknowledged.items():
            assert (label in result.committed) is commit
    for label, found in fates.items():
        assert len(found) == 1, f"{label!r} is torn"
        assert found == {"aborted"} or script.requested[label], f"no commit of {label!r} was requested"


async def recover(simulated_broker: SimulatedBroker, script: Script) -> None:
    await restarted(simulated_broker)
    for partition in (0, 1):
        result = await partition_contents(simulated_broker, partition=partition)
        known = {*result.committed, *result.aborted, *result.open}
        assert known >= {label for label, where in script.sent if where == partition}, "something acknowledged is lost"
        assert not result.open or await state(simulated_broker) == "Ongoing"
    if script.requested.keys() != script.acknowledged.keys():
        await script.end_again()
    newcomer = Transactor(simulated_broker, generation=script.producer.generation)
    assert await newcomer.init() == 0
    assert newcomer.producer_id == script.producer.producer_id
    assert newcomer.epoch > script.producer.epoch
    assert await newcomer.send(b"new") == 0
    script.requested[b"new"] = script.acknowledged[b"new"] = False
    assert await newcomer.abort() == 0
    await check(simulated_broker, script)


async def is_over(simulated_broker: SimulatedBroker, script: Script) -> bool:
    """Whether the script came to its end before the power went: it runs where the broker runs, and dies with it."""
    running = simulated_broker.host.start(script.run(), "script")
    await asyncio.wait([running], timeout=5)
    if not running.done() or isinstance(running.exception(), SimulatedPowerCut):
        return False
    running.result()
    return True


@pytest.mark.parametrize("generation", [OLDER, NEWER])
def test_no_power_cut_tears_a_transaction(generation: int) -> None:
    for operations in count():
        world = World(seed=operations)
        simulated_broker = SimulatedBroker(world, {"transaction.state.log.num.partitions": "1"})
        world.run(simulated_broker.open())
        world.run(simulated_broker.create_topic("t", 2))
        script = Script(simulated_broker, generation)
        assert world.run(script.producer.init()) == 0
        simulated_broker.host.disk.crash_after(operations)

        is_done = world.run(is_over(simulated_broker, script))
        if is_done:
            simulated_broker.kill(keep_page_cache=False)
        simulated_broker.registry.crash()
        world.run(recover(simulated_broker, script))
        world.run(simulated_broker.pass_time(1))
        simulated_broker.check()
        world.close()
        if is_done:
            assert operations > 20, "there was hardly anything to cut"
            break
    gc.collect()  # of the failures that nobody lived to see; else they would be reported when the tests are over
