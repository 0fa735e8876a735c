"""Metrics of delayed messages."""

from __future__ import annotations

from tests.unit.broker.delays.delay_support import TOPIC, delay, make, message, now_ms
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.server.metrics.metrics_page import scrape, with_simulated_broker


@with_simulated_broker
async def test_waiting_and_released_messages_are_counted(simulated_broker: SimulatedBroker) -> None:
    await make(simulated_broker)
    soon, later = now_ms(simulated_broker) + 10_000, now_ms(simulated_broker) + 3_600_000
    await delay(simulated_broker, *(message(simulated_broker, b"soon", deliver_at=str(soon)) for _ in range(3)))
    await delay(simulated_broker, message(simulated_broker, b"later", deliver_at=str(later)))
    await simulated_broker.pass_time(1)
    page = await scrape(simulated_broker)
    assert page.value("headrace_delayed_messages", topic=TOPIC) == 4
    assert page.value("headrace_delayed_overdue_seconds", topic=TOPIC) == 0
    assert page.value("headrace_delayed_released_total", topic=TOPIC) == 0
    await simulated_broker.pass_time(10)
    page = await scrape(simulated_broker)
    assert page.value("headrace_delayed_messages", topic=TOPIC) == 1
    assert page.value("headrace_delayed_released_total", topic=TOPIC) == 3
    assert page.value("headrace_delayed_late_seconds_count", topic=TOPIC) == 3
    assert page.value("headrace_delayed_late_seconds_bucket", topic=TOPIC, le="0.1") == 3


@with_simulated_broker
async def test_due_messages_that_are_not_released_are_overdue(simulated_broker: SimulatedBroker) -> None:
    await make(simulated_broker)
    await delay(simulated_broker, message(simulated_broker, b"soon", deliver_at=str(now_ms(simulated_broker) + 10_000)))
    await simulated_broker.pass_time(1)
    simulated_broker.host.disk.capacity_bytes = 1000  # nothing is released while the disk is nearly full
    await simulated_broker.pass_time(39)
    page = await scrape(simulated_broker)
    assert page.value("headrace_delayed_messages", topic=TOPIC) == 1
    assert 29 < page.value("headrace_delayed_overdue_seconds", topic=TOPIC) < 31
