"""A power cut at any step tears no bundle: all its members end alike, and the sequence tells which way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from itertools import count

import pytest
from tests.unit.broker.bundling import commit, sequence, writing
from tests.unit.broker.house import House
from tests.unit.broker.transacting import NEWER, OLDER, Transactor, back, story

from headrace.broker.transactions_log import TransactionsLog
from headrace.machines.bundles import Bundle
from headrace.machines.transaction_state import Transaction
from headrace.testkit.disk import SimulatedPowerCut
from headrace.testkit.world import World

STORE = TransactionsLog.store
SEQUENCES = 2
VALUES = (b"a", b"b")


class Script:
    """Two commits of two members in two partitions each, a straggler beside them, and what was heard of them."""

    def __init__(self, house: House, generation: int) -> None:
        self.house = house
        self.generation = generation
        self.asked = dict[int, list[Transactor]]()
        self.told = -1

    async def run(self) -> None:
        for number in range(SEQUENCES):
            members = [
                await writing(self.house, str(which), b"%d%s" % (number, value), 0, 1, generation=self.generation)
                for which, value in enumerate(VALUES)
            ]
            await writing(self.house, "straggler", b"never", 0, generation=self.generation)
            self.asked[number] = members
            assert await commit(self.house, number, *members) is True
            self.told = number


async def is_over(house: House, script: Script) -> bool:
    """Whether the script came to its end before the power went: it runs where the broker runs, and dies with it."""
    running = house.host.start(script.run(), "script")
    await asyncio.wait([running], timeout=5)
    if not running.done() or isinstance(running.exception(), SimulatedPowerCut):
        return False
    running.result()
    return True


async def committed(house: House) -> list[list[bytes]]:
    found = []
    for partition in (0, 1):
        told = await story(house, partition=partition)
        assert b"never" not in told.committed
        found.append(told.committed)
    return found


def whole(last: int) -> list[bytes]:
    return [b"%d%s" % (number, value) for number in range(last + 1) for value in VALUES]


async def check(house: House, script: Script) -> None:
    await back(house)
    last = await sequence(house)
    assert script.told <= last <= max(script.asked, default=-1)
    assert [sorted(values) for values in await committed(house)] == [whole(last)] * 2, "it is torn"
    for number, members in script.asked.items():
        # Whoever has heard nothing asks again, and what it hears is true.
        while (answer := await commit(house, number, *members)) == 51:
            await asyncio.sleep(0.1)
        assert answer is True or number < max(script.asked)
    last = await sequence(house)
    assert last == max(script.asked, default=-1)
    if script.asked:
        assert await commit(house, last + 1) is True
        assert [sorted(values) for values in await committed(house)] == [whole(last)] * 2
        assert not (await story(house)).open


def is_cut(generation: int, operations: int) -> bool:
    """Whether so many operations of the disk were fewer than the script takes. Whatever was cut off must not matter."""
    world = World(seed=operations)
    try:
        house = House(world, {"transaction.state.log.num.partitions": "1"})
        world.run(house.open())
        world.run(house.make_topic("t", 2))
        world.run(writing(house, "0", b""))  # the log is there
        script = Script(house, generation)
        house.host.disk.crash_after(operations)
        is_done = world.run(is_over(house, script))
        if is_done:
            house.kill(keep_page_cache=False)
        house.registry.crash()
        world.run(check(house, script))
        world.run(house.pass_time(1))
        house.check()
        return not is_done
    finally:
        world.close()


def cut_everywhere(generation: int) -> int:
    try:
        return next(operations for operations in count() if not is_cut(generation, operations))
    finally:
        gc.collect()  # of the failures that nobody lived to see; else they would be reported when the tests are over


@pytest.mark.parametrize("generation", [OLDER, NEWER])
def test_no_power_cut_tears_a_bundle(generation: int) -> None:
    assert cut_everywhere(generation) > 30, "there was hardly anything to cut"


# The controls: what the test above is there to find


def store_each(self: TransactionsLog, transactions: Sequence[Transaction], bundle: Bundle | None = None) -> int:
    ends = [STORE(self, [transaction]) for transaction in transactions]
    return ends[-1] if bundle is None else STORE(self, [], bundle)


def store_the_sequence_first(
    self: TransactionsLog, transactions: Sequence[Transaction], bundle: Bundle | None = None
) -> int:
    end_offset = 0 if bundle is None else STORE(self, [], bundle)
    return STORE(self, transactions) if transactions else end_offset


@pytest.mark.parametrize("store", [store_each, store_the_sequence_first])
def test_what_is_stored_by_several_appends_is_torn(store: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionsLog, "store", store)
    with pytest.raises(AssertionError):
        cut_everywhere(NEWER)
