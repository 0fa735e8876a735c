"""Repeating messages keep their interval, and missed releases are skipped."""

from __future__ import annotations

from tests.unit.broker.delays import delay_support as delayed
from tests.unit.broker.delays.delay_support import alter, cancel, delay, listed, message, now_ms, seen, until_ms, values
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.testkit.clock import START_MS

MINUTE_MS = 60_000


async def test_a_repeating_message_is_released_until_it_is_cancelled(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    sent_ms = now_ms(simulated_broker)
    offset = await delay(simulated_broker, message(simulated_broker, b"tick", repeat="every 10s"))
    await until_ms(simulated_broker, sent_ms + 35_000)
    times = [one.timestamp_ms - sent_ms for one in await seen(simulated_broker)]
    assert [time // 1000 for time in times] == [10, 20, 30]
    assert all(time % 1000 <= 20 for time in times)
    assert "headrace-repeat" not in (await seen(simulated_broker))[0].headers

    assert await cancel(simulated_broker, offset) == 0

    await simulated_broker.pass_time(60)
    assert len(await values(simulated_broker)) == 3
    assert (await listed(simulated_broker)).waiting == 0


async def test_the_first_time_may_be_another_one(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    await delay(simulated_broker, message(simulated_broker, b"tick", repeat="every 10s", delay="3s"))
    await simulated_broker.pass_time(25)
    assert [(one.timestamp_ms - START_MS) // 1000 for one in await seen(simulated_broker)] == [3, 13, 23]


async def test_a_cron_expression_determines_the_releases(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    await delay(simulated_broker, message(simulated_broker, b"tick", repeat="*/2 * * * *"))
    await simulated_broker.pass_time(7 * 60)
    times = [one.timestamp_ms for one in await seen(simulated_broker)]
    assert len(times) in (3, 4)
    assert all(time % (2 * MINUTE_MS) <= 20 for time in times)


async def test_missed_repeats_are_released_once(
    simulated_broker: SimulatedBroker,
) -> None:
    await delayed.make(simulated_broker)
    await delay(simulated_broker, message(simulated_broker, b"tick", repeat="every 10s"))
    await simulated_broker.pass_time(15)
    await simulated_broker.close()
    await simulated_broker.pass_time(47)
    await simulated_broker.open()
    up_ms = now_ms(simulated_broker)
    await simulated_broker.pass_time(20)
    times = [one.timestamp_ms - START_MS for one in await seen(simulated_broker)]
    assert [time // 1000 for time in times] == [10, (up_ms - START_MS) // 1000, 70, 80]


async def test_rescheduling_a_repeating_message_moves_its_next_release(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    sent_ms = now_ms(simulated_broker)
    offset = await delay(simulated_broker, message(simulated_broker, b"tick", repeat="every 10s"))
    await until_ms(simulated_broker, sent_ms + 12_000)
    assert await alter(simulated_broker, [(offset, sent_ms + 15_000)]) == [0]
    await until_ms(simulated_broker, sent_ms + 36_000)
    assert [(one.timestamp_ms - sent_ms) // 1000 for one in await seen(simulated_broker)] == [10, 15, 25, 35]


async def test_the_source_of_a_repeating_message_is_kept(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    offset = await delay(simulated_broker, message(simulated_broker, b"tick", repeat="every 10s"))
    await simulated_broker.pass_time(150)
    assert simulated_broker.partition(delayed.DELAYED).log.start_offset == offset
    await simulated_broker.restart()
    await simulated_broker.pass_time(10)
    assert len(await values(simulated_broker)) == 16
