"""Whatever ends between the steps of a release, the message comes once: T's own log says whether it has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

import pytest
from tests.unit.broker import delayed
from tests.unit.broker.asking import produce
from tests.unit.broker.delayed import DELAYED, TOPIC, alter, cancel, delay, events, listed, message, now_ms, values
from tests.unit.broker.house import House
from tests.unit.broker.leads import lead, resign

from headrace.broker.delay_target import Batch, Target
from headrace.broker.delayed_log import DelayedLog
from headrace.broker.partition import Partition
from headrace.model.errors import NotEnoughReplicas, NotLeader
from headrace.wire.batch import Record
from headrace.wire.delayed_records import Released, Releasing

Step = Callable[[Partition], None]


def nothing(_partition: Partition) -> None:
    return


def forget_producers(partition: Partition) -> None:
    """As after a day without a word."""
    partition.state.producers.expire(0.0)
    partition.state.producers.expire(1e9)


class Interrupted:
    """The next append to T is cut short: before anything is written, or right after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, writes: bool, then: Step = nothing) -> None:
        self.count = 0
        self.left = 1
        append = Target.append

        def interrupted(target: Target, batch: Batch, now_ms: int) -> int:
            self.count += 1
            if not self.left:
                return append(target, batch, now_ms)
            self.left -= 1
            if writes:
                append(target, batch, now_ms)
            then(target.partition)
            raise NotLeader("the lead has just ended")

        monkeypatch.setattr(Target, "append", interrupted)


@pytest.mark.parametrize("then", [nothing, forget_producers])
@pytest.mark.parametrize("writes", [True, False])
async def test_a_release_that_was_cut_short_is_made_good_once(
    house: House, monkeypatch: pytest.MonkeyPatch, writes: bool, then: Step
) -> None:
    await delayed.make(house)
    await produce(house, TOPIC, b"before")
    await delay(house, message(house, b"a", delay="1s"), message(house, b"b", delay="1s"))
    cut = Interrupted(monkeypatch, writes=writes, then=then)
    await house.pass_time(0.9)
    await produce(house, TOPIC, b"between")

    await house.pass_time(5)

    assert cut.count == (1 if writes else 2)
    assert await values(house) == [b"before", b"between", b"a", b"b"]
    await house.restart()
    await house.pass_time(5)
    assert await values(house) == [b"before", b"between", b"a", b"b"]
    await delay(house, message(house, b"c"))
    await house.pass_time(1)
    assert (await values(house))[4:] == [b"c"]


@pytest.mark.parametrize("then", [nothing, forget_producers])
@pytest.mark.parametrize("writes", [True, False])
async def test_the_next_lead_makes_it_good(
    house: House, monkeypatch: pytest.MonkeyPatch, writes: bool, then: Step
) -> None:
    await delayed.make(house)
    await delay(house, message(house, b"a", delay="1s"), message(house, b"tick", repeat="every 1s"))

    def end_the_lead(partition: Partition) -> None:
        then(partition)
        resign(house, house.partition(DELAYED))

    Interrupted(monkeypatch, writes=writes, then=end_the_lead)
    await house.pass_time(1.5)
    assert await values(house) == ([b"a", b"tick"] if writes else [])
    local = house.broker.catalogue.topic(DELAYED).local(0)
    assert local is not None
    lead(house, local)
    await house.pass_time(1)
    assert await values(house) == [b"a", b"tick", b"tick"]


async def test_nothing_is_released_while_somebody_else_leads_the_topic(house: House) -> None:
    await delayed.make(house)
    target = house.partition(TOPIC)
    await delay(house, message(house, b"a", delay="1s"))
    resign(house, target)
    await house.pass_time(5)
    assert [type(event) for event in await events(house)] == []
    assert (await listed(house)).waiting == 1
    lead(house, target)
    await house.pass_time(0.1)
    assert await values(house) == [b"a"]


async def test_a_lead_of_the_topic_that_ends_and_comes_back_is_looked_at_anew(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delayed.make(house)
    target = house.partition(TOPIC)

    def end_the_lead(partition: Partition) -> None:
        resign(house, partition)

    Interrupted(monkeypatch, writes=True, then=end_the_lead)
    await delay(house, message(house, b"a"))
    await house.pass_time(1)
    await target.log.truncate(0)  # as a follower, whose leader did not have it
    lead(house, target)
    await house.pass_time(6)
    assert await values(house) == [b"a"]


async def test_a_topic_that_lost_what_its_producer_wrote_gets_what_is_open_under_another(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delayed.make(house)
    for value in (b"kept", b"lost"):
        await delay(house, message(house, value))
        await house.pass_time(3)
    target = house.partition(TOPIC)

    def lose(partition: Partition) -> None:
        resign(house, partition)

    Interrupted(monkeypatch, writes=False, then=lose)
    await delay(house, message(house, b"open", repeat="every 1h", delay="0s"))
    await house.pass_time(1)
    await target.log.truncate(1)
    target.was_cut()
    lead(house, target)
    await house.pass_time(6)
    assert await values(house) == [b"kept", b"open"]
    announced = [event for event in await events(house) if isinstance(event, Releasing)]
    assert announced[-1].producer != announced[0].producer
    assert (await listed(house)).waiting == 1
    await delay(house, message(house, b"new"))
    await house.pass_time(1)
    assert await values(house) == [b"kept", b"open", b"new"]
    await house.restart()
    await house.pass_time(1)
    assert await values(house) == [b"kept", b"open", b"new"]


async def test_that_a_release_is_over_is_noted_when_nothing_else_happens(house: House) -> None:
    await delayed.make(house)
    await delay(house, message(house, b"a"))
    await house.pass_time(3)
    assert [type(event) for event in await events(house)] == [Releasing, Released]


async def test_a_message_that_was_announced_cannot_be_cancelled(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await delayed.make(house)
    Interrupted(monkeypatch, writes=False)
    offset = await delay(house, message(house, b"a", delay="1s"))
    await house.pass_time(1.05)
    assert await values(house) == []
    assert await cancel(house, offset) != 0
    await house.pass_time(1)
    assert await values(house) == [b"a"]


async def test_what_is_changed_while_it_is_being_read_is_changed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await delayed.make(house)
    offset = await delay(house, *[message(house, value, delay="1s") for value in (b"moved", b"cancelled", b"comes")])
    asked: list[list[int]] = []
    read = DelayedLog.messages

    async def read_slowly(log: DelayedLog, offsets: Iterable[int], size_bytes_max: float = inf) -> dict[int, Record]:
        if not asked:
            asked.append(await alter(house, [(offset, now_ms(house) + 5000), (offset + 1, -1)]))
        return await read(log, offsets, size_bytes_max)

    monkeypatch.setattr(DelayedLog, "messages", read_slowly)
    await house.pass_time(2)
    assert asked == [[0, 0]]
    assert await values(house) == [b"comes"]
    await house.pass_time(10)
    assert await values(house) == [b"comes", b"moved"]


async def test_a_release_is_open_until_the_topic_has_committed_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delayed.make(house)
    move = Partition.move
    with monkeypatch.context() as patch:
        patch.setattr(Partition, "move", lambda partition: None if partition.topic == TOPIC else move(partition))
        await delay(house, message(house, b"a"))
        await house.pass_time(5)
        await delay(house, message(house, b"b"))
        await house.pass_time(5)
        announced = await events(house)
        assert [type(event) for event in announced] == [Releasing, Releasing]
        assert [event.done for event in announced if isinstance(event, Releasing)] == [-1, -1]
    house.partition(TOPIC).move()
    await house.pass_time(5)
    assert await values(house) == [b"a", b"b"]
    assert [type(event) for event in await events(house)] == [Releasing, Releasing, Released]


async def test_what_cannot_be_committed_now_is_released_later(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await delayed.make(house)

    def refuse(_target: Target) -> None:
        raise NotEnoughReplicas("too few are in sync")

    with monkeypatch.context() as patch:
        patch.setattr(Target, "ensure_able", refuse)
        offset = await delay(house, message(house, b"a"), message(house, b"b"))
        await house.pass_time(3)
        assert await values(house) == []
        assert await cancel(house, offset) == 0
    await house.pass_time(6)
    assert await values(house) == [b"b"]


async def test_sequences_go_on_from_zero_behind_the_highest(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await delayed.make(house)
    await delay(house, message(house, b"first"))
    await house.pass_time(3)
    led = house.broker.delayed.of(TOPIC, 0)
    led._sequence = 2**31 - 2
    forget_producers(house.partition(TOPIC))
    expected = [b"first"]
    for number in range(3):
        if number == 1:
            Interrupted(monkeypatch, writes=False)
        await delay(house, *[message(house, b"%d.%d" % (number, one)) for one in range(3)])
        await house.pass_time(3)
        expected += [b"%d.%d" % (number, one) for one in range(3)]
    assert await values(house) == expected
    announced = [event for event in await events(house) if isinstance(event, Releasing)]
    assert [event.sequence for event in announced] == [0, 2**31 - 2, 1, 4]
