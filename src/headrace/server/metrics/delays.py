"""Metrics of delayed messages: how many are waiting, and how late they are released."""

from __future__ import annotations

from headrace.broker.broker import Broker
from headrace.model.names import DELAYED_PREFIX
from headrace.runtime.clock import Clock
from headrace.runtime.tasks import CooperativeYield
from headrace.server.metrics.exposition import Exposition, format_labels


async def add_delays(out: Exposition, broker: Broker, clock: Clock, yield_turn: CooperativeYield) -> None:
    waiting: dict[str, int] = {}
    overdue_ms: dict[str, int] = {}
    now_ms = clock.now_ms()
    for led in list(broker.delayed):
        await yield_turn()
        topic = led.partition.topic.removeprefix(DELAYED_PREFIX)
        waiting[topic] = waiting.get(topic, 0) + len(led.delays)
        first_ms = led.delays.first_ms()
        late_ms = 0 if first_ms is None else max(now_ms - first_ms, 0)
        overdue_ms[topic] = max(overdue_ms.get(topic, 0), late_ms)
    for topic, count in waiting.items():
        label = format_labels(topic=topic)
        counts = broker.delayed.counts[topic]
        out.add("headrace_delayed_messages", count, label)
        out.add("headrace_delayed_overdue_seconds", overdue_ms[topic] / 1000, label)
        out.add("headrace_delayed_released_total", counts.released, label)
        out.add_histogram("headrace_delayed_late_seconds", counts.late_seconds, label)
