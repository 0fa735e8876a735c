"""Delayed messages, as they are told."""

from __future__ import annotations

from tests.unit.broker.delayed import TOPIC, delay, make, message, now_ms
from tests.unit.broker.house import House
from tests.unit.server.metrics.reading import in_house, scrape


@in_house
async def test_what_waits_and_what_came_is_told(house: House) -> None:
    await make(house)
    soon, later = now_ms(house) + 10_000, now_ms(house) + 3_600_000
    await delay(house, *(message(house, b"soon", deliver_at=str(soon)) for _ in range(3)))
    await delay(house, message(house, b"later", deliver_at=str(later)))
    await house.pass_time(1)
    page = await scrape(house)
    assert page.value("headrace_delayed_messages", topic=TOPIC) == 4
    assert page.value("headrace_delayed_overdue_seconds", topic=TOPIC) == 0
    assert page.value("headrace_delayed_released_total", topic=TOPIC) == 0
    await house.pass_time(10)
    page = await scrape(house)
    assert page.value("headrace_delayed_messages", topic=TOPIC) == 1
    assert page.value("headrace_delayed_released_total", topic=TOPIC) == 3
    assert page.value("headrace_delayed_late_seconds_count", topic=TOPIC) == 3
    assert page.value("headrace_delayed_late_seconds_bucket", topic=TOPIC, le="0.1") == 3


@in_house
async def test_what_should_have_come_is_overdue(house: House) -> None:
    await make(house)
    await delay(house, message(house, b"soon", deliver_at=str(now_ms(house) + 10_000)))
    await house.pass_time(1)
    house.host.disk.capacity_bytes = 1000  # nothing is released while the disk is nearly full
    await house.pass_time(39)
    page = await scrape(house)
    assert page.value("headrace_delayed_messages", topic=TOPIC) == 1
    assert 29 < page.value("headrace_delayed_overdue_seconds", topic=TOPIC) < 31
