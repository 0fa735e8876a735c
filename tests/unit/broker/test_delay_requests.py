"""What waits can be listed, cancelled and moved; what does not wait (any more) is refused."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker import delayed
from tests.unit.broker.delayed import TOPIC, alter, cancel, delay, listed, message, now_ms, until_ms, values
from tests.unit.broker.house import House
from tests.unit.broker.leads import lead, resign

from headrace.broker.delay_lead import LedDelays
from headrace.model.errors import (
    CoordinatorLoading,
    InvalidRecordState,
    InvalidRequest,
    NotLeader,
    UnknownTopicOrPartition,
)
from headrace.wire.messages.alter_delayed import AlterDelayedRequest, DelayedChange


async def test_what_waits_is_listed_by_when_it_is_due_page_by_page(house: House) -> None:
    await delayed.make(house)
    sent_ms = now_ms(house)
    seconds = [40, 7200, 10, 900_000_000, 50, 7200, 90]
    await delay(house, *[message(house, b"%d" % second, delay=f"{second}s") for second in seconds])
    await house.turn()

    found, after = [], (-1, -1)
    while page := (await listed(house, after_due_ms=after[0], after_offset=after[1], count_max=2)).messages:
        found += [(one.due_ms - sent_ms) // 1000 for one in page]
        after = page[-1].due_ms, page[-1].offset

    assert found == sorted(seconds)
    first = (await listed(house)).messages[0]
    assert (first.offset, first.key, bytes(first.value or b"")) == (2, b"k", b"10")
    assert [(one.name, one.value) for one in first.headers] == [("headrace-delay", b"10s")]
    assert (await listed(house)).waiting == len(seconds)


async def test_a_page_of_large_messages_is_shorter_but_goes_on(house: House) -> None:
    await delayed.make(house)
    for number in range(60):
        await delay(house, message(house, b"x" * 100_000, delay=f"{1000 - number}s"))
    await house.turn()
    found: list[int] = []
    after, pages = (-1, -1), 0
    while page := (await listed(house, after_due_ms=after[0], after_offset=after[1])).messages:
        found += [one.offset for one in page]
        after, pages = (page[-1].due_ms, page[-1].offset), pages + 1
    assert found == list(range(59, -1, -1))
    assert pages > 3


async def test_a_cancelled_message_never_comes(house: House) -> None:
    await delayed.make(house)
    offset = await delay(house, message(house, b"a", delay="2s"), message(house, b"b", delay="2s"))
    assert await cancel(house, offset) == 0
    assert [one.offset for one in (await listed(house)).messages] == [offset + 1]
    assert await cancel(house, offset) == InvalidRecordState.code

    await house.restart()

    await house.pass_time(5)
    assert await values(house) == [b"b"]


async def test_one_that_was_just_accepted_can_be_cancelled_when_it_is_read(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delayed.make(house)
    await delay(house, message(house, b"first", delay="2s"))
    await house.turn()
    read, may_read = LedDelays._take_in, asyncio.Event()

    async def read_later(self: LedDelays, end_offset: int) -> None:
        await may_read.wait()
        await read(self, end_offset)

    monkeypatch.setattr(LedDelays, "_take_in", read_later)
    offset = await delay(house, message(house, b"second", delay="2s"))
    assert await cancel(house, offset) == CoordinatorLoading.code, "and not that it does not wait any more"
    may_read.set()
    await house.turn()
    assert await cancel(house, offset) == 0
    assert await cancel(house, offset + 10) == InvalidRecordState.code


async def test_a_moved_message_comes_at_its_new_time_only(house: House) -> None:
    await delayed.make(house)
    sent_ms = now_ms(house)
    offset = await delay(house, message(house, b"earlier", delay="1h"), message(house, b"later", delay="1s"))
    assert await alter(house, [(offset, sent_ms + 3000), (offset + 1, sent_ms + 60_000)]) == [0, 0]
    await until_ms(house, sent_ms + 2990)
    assert await values(house) == []
    await until_ms(house, sent_ms + 3100)
    assert await values(house) == [b"earlier"]

    await house.restart()

    await until_ms(house, sent_ms + 59_990)
    assert await values(house) == [b"earlier"]
    await until_ms(house, sent_ms + 60_100)
    assert await values(house) == [b"earlier", b"later"]


async def test_a_message_may_be_moved_to_and_fro(house: House) -> None:
    await delayed.make(house)
    sent_ms = now_ms(house)
    offset = await delay(house, message(house, b"once", delay="5s"))
    for due_ms in (sent_ms + 9000, sent_ms + 5000, sent_ms + 2000, sent_ms + 5000):
        assert await alter(house, [(offset, due_ms)]) == [0]
    await until_ms(house, sent_ms + 4990)
    assert await values(house) == []
    await until_ms(house, sent_ms + 12_000)
    assert await values(house) == [b"once"]


async def test_what_does_not_wait_cannot_be_changed(house: House) -> None:
    await delayed.make(house)
    offset = await delay(house, message(house, b"gone"))
    await house.pass_time(0.1)
    assert await values(house) == [b"gone"]
    refused = InvalidRecordState.code
    assert await alter(house, [(offset, -1), (offset + 1, -1), (999, now_ms(house)), (-3, -1)]) == [refused] * 4


async def test_a_change_that_makes_no_sense_is_refused(house: House) -> None:
    await delayed.make(house)
    offset = await delay(house, message(house, b"a", delay="1h"))
    assert await alter(house, [(offset, -2), (offset, 2**62)]) == [InvalidRequest.code] * 2
    codes = await alter(house, [(999, -1)] * 1001)
    assert codes == [InvalidRecordState.code] * 1000 + [InvalidRequest.code]
    for count_max in (0, -1, 1001):
        assert (await listed(house, count_max=count_max)).error_code == InvalidRequest.code


async def test_only_the_leader_of_the_delayed_log_answers(house: House) -> None:
    await house.make_topic(TOPIC)
    assert (await listed(house, topic="unknown")).error_code == UnknownTopicOrPartition.code
    assert (await listed(house)).error_code == UnknownTopicOrPartition.code
    await delayed.companion(house)
    assert (await listed(house)).error_code in (0, CoordinatorLoading.code)
    await house.turn()
    assert (await listed(house)).error_code == 0
    assert (await listed(house, partition=1)).error_code == UnknownTopicOrPartition.code

    partition = house.partition(delayed.DELAYED)
    resign(house, partition)
    assert (await listed(house)).error_code == NotLeader.code
    assert await cancel(house, 0) == NotLeader.code
    lead(house, partition)
    assert (await listed(house)).error_code in (0, CoordinatorLoading.code)


async def test_one_who_waits_for_his_change_hears_when_the_lead_ends(house: House) -> None:
    await delayed.make(house)
    offset = await delay(house, message(house, b"a", delay="1h"))
    partition = house.partition(delayed.DELAYED)
    request = AlterDelayedRequest(topic=TOPIC, partition=0, changes=[DelayedChange(offset=offset)])
    asked = house.begin(request, 0)
    resign(house, partition)
    (result,) = (await asked).results
    assert result.error_code == NotLeader.code
    lead(house, partition)
