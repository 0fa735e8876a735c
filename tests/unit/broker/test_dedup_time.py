"""A dedup window goes by the broker's time: an id is never forgotten early, whatever the clocks of producers say."""

from __future__ import annotations

import pytest
from tests.unit.broker.house import House
from tests.unit.broker.test_dedup import MINUTE_MS, WINDOW, marked, put, until_read

from headrace.model.message_headers import DEDUP_ID
from headrace.wire.batch import Record, build_batch

HOUR_MS = 60 * MINUTE_MS
YEAR_MS = 365 * 24 * HOUR_MS


def with_clock_off(house: House, dedup_id: bytes, off_ms: int) -> bytearray:
    """A message from a producer whose clock differs from the broker's."""
    return build_batch([Record(None, b"value", [(DEDUP_ID, dedup_id)], house.host.clock.now_ms() + off_ms)])


async def load_again(house: House) -> None:
    """As when the leadership of the partition begins anew while the broker runs."""
    house.broker.dedup.begin(house.partition("t"))
    await until_read(house)


async def restart(house: House, *, crash: bool = False) -> None:
    if crash:
        house.kill(keep_page_cache=False)
        await house.open()
    else:
        await house.restart()
    await until_read(house)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("off_ms", [-2 * 5 * MINUTE_MS, -YEAR_MS, MINUTE_MS])
async def test_an_id_is_remembered_over_a_restart_however_wrong_the_publishers_clock_is(
    house: House, off_ms: int, crash: bool
) -> None:
    await house.make_topic("t", dedup_window_ms=WINDOW)
    await put(house, with_clock_off(house, b"x", off_ms))
    house.partition("t").log.roll()
    await put(house, with_clock_off(house, b"y", off_ms))
    await restart(house, crash=crash)
    assert await put(house, with_clock_off(house, b"x", off_ms)) == 0
    assert await put(house, with_clock_off(house, b"y", off_ms)) == 1


async def test_an_id_that_is_read_again_ends_at_most_one_window_after_the_restart(house: House) -> None:
    await house.make_topic("t", dedup_window_ms="10000")
    await put(house, marked(house, b"old:first"))
    await house.pass_time(6)
    await put(house, marked(house, b"new:first"))
    await restart(house)
    await house.pass_time(9)
    assert await put(house, marked(house, b"old:again")) == 0
    assert await put(house, marked(house, b"new:again")) == 1
    await house.pass_time(2)
    assert await put(house, marked(house, b"old:again")) == 2
    assert await put(house, marked(house, b"new:again")) == 3


async def test_an_id_of_a_closed_segment_ends_one_window_after_the_next_segment_began(house: House) -> None:
    await house.make_topic("t", dedup_window_ms="10000")
    await put(house, marked(house, b"x:first"))
    house.partition("t").log.roll()
    await house.pass_time(2)
    await put(house, marked(house, b"y:first"))
    await house.pass_time(4)
    await restart(house)
    await house.pass_time(5)
    assert await put(house, marked(house, b"x:again")) == 0, "11 seconds after it arrived, 9 after the next segment"
    await house.pass_time(2)
    assert await put(house, marked(house, b"x:again")) == 2
    assert await put(house, marked(house, b"y:again")) == 1


async def test_an_id_in_a_topic_with_log_append_time_ends_when_it_would_have_without_a_restart(house: House) -> None:
    await house.make_topic("t", dedup_window_ms="10000", message_timestamp_type="LogAppendTime")
    await put(house, with_clock_off(house, b"old", -YEAR_MS))
    await house.pass_time(6)
    await put(house, with_clock_off(house, b"new", -YEAR_MS))
    await restart(house)
    await house.pass_time(5)
    assert await put(house, marked(house, b"new:again")) == 1
    assert await put(house, marked(house, b"old:again")) == 2


async def test_of_two_stored_messages_with_the_same_id_the_later_one_counts_after_a_restart(house: House) -> None:
    await house.make_topic("t", dedup_window_ms="10000")
    await put(house, marked(house, b"x:first"))
    house.partition("t").log.roll()
    await house.pass_time(9)
    await put(house, marked(house, b"y:first"))
    await house.pass_time(3)
    assert await put(house, marked(house, b"x:second")) == 2
    await restart(house)
    await house.pass_time(8)
    assert await put(house, marked(house, b"x:again")) == 2


async def test_an_id_is_remembered_when_its_segment_was_closed_and_the_next_is_still_empty(house: House) -> None:
    await house.make_topic("t", dedup_window_ms=WINDOW)
    await put(house, marked(house, b"x:first"))
    house.partition("t").log.roll()
    await load_again(house)
    assert await put(house, marked(house, b"x:again")) == 0


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
async def test_a_jump_of_the_brokers_clock_neither_ends_an_id_early_nor_keeps_it(house: House, jump_ms: int) -> None:
    await house.make_topic("t", dedup_window_ms="10000")
    await put(house, marked(house, b"x:first"))
    house.host.clock.jump(jump_ms)
    await house.pass_time(9)
    assert await put(house, marked(house, b"x:again")) == 0
    await house.pass_time(2)
    assert await put(house, marked(house, b"x:again")) == 1


@pytest.mark.parametrize("append_time", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
async def test_after_a_jump_of_the_brokers_clock_a_new_leadership_still_knows_the_ids(
    house: House, jump_ms: int, append_time: str
) -> None:
    await house.make_topic("t", dedup_window_ms="10000", message_timestamp_type=append_time)
    await put(house, marked(house, b"before:first"))
    house.host.clock.jump(jump_ms)
    house.partition("t").log.roll()
    await put(house, marked(house, b"after:first"))
    house.partition("t").log.roll()
    await put(house, marked(house, b"last:first"))
    await load_again(house)
    assert [await put(house, marked(house, one + b":again")) for one in (b"before", b"after", b"last")] == [0, 1, 2]
    await house.pass_time(11)
    assert await put(house, marked(house, b"before:again")) == 3
