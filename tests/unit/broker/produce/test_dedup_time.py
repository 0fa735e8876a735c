"""Dedup windows use the broker's time: an id never expires early, whatever the producers' clocks say."""

from __future__ import annotations

import pytest
from tests.unit.broker.produce.test_dedup_windows import MINUTE_MS, WINDOW, marked, put, until_read
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.message_headers import DEDUP_ID
from headrace.wire.batches.batch import BatchRecord, build_batch

HOUR_MS = 60 * MINUTE_MS
YEAR_MS = 365 * 24 * HOUR_MS


def with_clock_off(simulated_broker: SimulatedBroker, dedup_id: bytes, off_ms: int) -> bytearray:
    """A message from a producer whose clock differs from the broker's."""
    return build_batch(
        [BatchRecord(None, b"value", [(DEDUP_ID, dedup_id)], simulated_broker.host.clock.now_ms() + off_ms)]
    )


async def load_again(simulated_broker: SimulatedBroker) -> None:
    """Begin a new leader term of the partition in a running broker."""
    simulated_broker.broker.dedup.begin(simulated_broker.partition("t"))
    await until_read(simulated_broker)


async def restart(simulated_broker: SimulatedBroker, *, crash: bool = False) -> None:
    if crash:
        simulated_broker.kill(keep_page_cache=False)
        await simulated_broker.open()
    else:
        await simulated_broker.restart()
    await until_read(simulated_broker)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("off_ms", [-2 * 5 * MINUTE_MS, -YEAR_MS, MINUTE_MS])
async def test_a_dedup_id_survives_a_restart_even_with_a_wrong_publisher_clock(
    simulated_broker: SimulatedBroker, off_ms: int, crash: bool
) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    await put(simulated_broker, with_clock_off(simulated_broker, b"x", off_ms))
    simulated_broker.partition("t").log.roll()
    await put(simulated_broker, with_clock_off(simulated_broker, b"y", off_ms))
    await restart(simulated_broker, crash=crash)
    assert await put(simulated_broker, with_clock_off(simulated_broker, b"x", off_ms)) == 0
    assert await put(simulated_broker, with_clock_off(simulated_broker, b"y", off_ms)) == 1


async def test_an_id_that_is_read_again_ends_at_most_one_window_after_the_restart(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms="10000")
    await put(simulated_broker, marked(simulated_broker, b"old:first"))
    await simulated_broker.pass_time(6)
    await put(simulated_broker, marked(simulated_broker, b"new:first"))
    await restart(simulated_broker)
    await simulated_broker.pass_time(9)
    assert await put(simulated_broker, marked(simulated_broker, b"old:again")) == 0
    assert await put(simulated_broker, marked(simulated_broker, b"new:again")) == 1
    await simulated_broker.pass_time(2)
    assert await put(simulated_broker, marked(simulated_broker, b"old:again")) == 2
    assert await put(simulated_broker, marked(simulated_broker, b"new:again")) == 3


async def test_an_id_of_a_closed_segment_ends_one_window_after_the_next_segment_began(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms="10000")
    await put(simulated_broker, marked(simulated_broker, b"x:first"))
    simulated_broker.partition("t").log.roll()
    await simulated_broker.pass_time(2)
    await put(simulated_broker, marked(simulated_broker, b"y:first"))
    await simulated_broker.pass_time(4)
    await restart(simulated_broker)
    await simulated_broker.pass_time(5)
    assert await put(simulated_broker, marked(simulated_broker, b"x:again")) == 0, (
        "11 seconds after it arrived, 9 after the next segment"
    )
    await simulated_broker.pass_time(2)
    assert await put(simulated_broker, marked(simulated_broker, b"x:again")) == 2
    assert await put(simulated_broker, marked(simulated_broker, b"y:again")) == 1


async def test_an_id_in_a_topic_with_log_append_time_ends_when_it_would_have_without_a_restart(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms="10000", message_timestamp_type="LogAppendTime")
    await put(simulated_broker, with_clock_off(simulated_broker, b"old", -YEAR_MS))
    await simulated_broker.pass_time(6)
    await put(simulated_broker, with_clock_off(simulated_broker, b"new", -YEAR_MS))
    await restart(simulated_broker)
    await simulated_broker.pass_time(5)
    assert await put(simulated_broker, marked(simulated_broker, b"new:again")) == 1
    assert await put(simulated_broker, marked(simulated_broker, b"old:again")) == 2


async def test_of_two_stored_messages_with_the_same_id_the_later_one_counts_after_a_restart(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms="10000")
    await put(simulated_broker, marked(simulated_broker, b"x:first"))
    simulated_broker.partition("t").log.roll()
    await simulated_broker.pass_time(9)
    await put(simulated_broker, marked(simulated_broker, b"y:first"))
    await simulated_broker.pass_time(3)
    assert await put(simulated_broker, marked(simulated_broker, b"x:second")) == 2
    await restart(simulated_broker)
    await simulated_broker.pass_time(8)
    assert await put(simulated_broker, marked(simulated_broker, b"x:again")) == 2


async def test_an_id_is_remembered_when_its_segment_was_closed_and_the_next_is_still_empty(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    await put(simulated_broker, marked(simulated_broker, b"x:first"))
    simulated_broker.partition("t").log.roll()
    await load_again(simulated_broker)
    assert await put(simulated_broker, marked(simulated_broker, b"x:again")) == 0


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
async def test_a_jump_of_the_brokers_clock_does_not_change_when_a_dedup_id_expires(
    simulated_broker: SimulatedBroker, jump_ms: int
) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms="10000")
    await put(simulated_broker, marked(simulated_broker, b"x:first"))
    simulated_broker.host.clock.jump(jump_ms)
    await simulated_broker.pass_time(9)
    assert await put(simulated_broker, marked(simulated_broker, b"x:again")) == 0
    await simulated_broker.pass_time(2)
    assert await put(simulated_broker, marked(simulated_broker, b"x:again")) == 1


@pytest.mark.parametrize("append_time", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
async def test_after_a_jump_of_the_brokers_clock_a_new_leadership_still_knows_the_ids(
    simulated_broker: SimulatedBroker, jump_ms: int, append_time: str
) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms="10000", message_timestamp_type=append_time)
    await put(simulated_broker, marked(simulated_broker, b"before:first"))
    simulated_broker.host.clock.jump(jump_ms)
    simulated_broker.partition("t").log.roll()
    await put(simulated_broker, marked(simulated_broker, b"after:first"))
    simulated_broker.partition("t").log.roll()
    await put(simulated_broker, marked(simulated_broker, b"last:first"))
    await load_again(simulated_broker)
    assert [
        await put(simulated_broker, marked(simulated_broker, one + b":again")) for one in (b"before", b"after", b"last")
    ] == [0, 1, 2]
    await simulated_broker.pass_time(11)
    assert await put(simulated_broker, marked(simulated_broker, b"before:again")) == 3
