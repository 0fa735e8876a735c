"""Delayed messages: each is delivered exactly once and not before its time; some repeat until they are cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.simulation.features.feature import Draft, Feature, TopicWriter, create_topic, stored

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.queues.schedule import Schedule
from headrace.model.errors import HeadraceError, InvalidRecordState
from headrace.model.ids import MessageId
from headrace.model.message_headers import DELIVER_AT, REPEAT
from headrace.model.names import delayed_topic
from headrace.testkit.anomalies import Anomaly
from headrace.testkit.history import History

if TYPE_CHECKING:
    from tests.simulation.cluster_scenario import ClusterScenario

TOPIC = "later"
DELAYS_MS = (0, 100, 1000, 4000)
REPEAT_MS = 700


class Delays(Feature):
    """The leader's wall clock decides when a message is due, so this is not combined with clocks that stay wrong.
    Faults turn clocks, which makes messages early or late; after healing the clocks are corrected."""

    needs_broker_clocks = True

    def __init__(self, scenario: ClusterScenario) -> None:
        super().__init__(scenario)
        self.replicas = self.random.choice((2, 3))
        self.repeats = self.random.random() < 0.4
        self.history = History(has_gaps=True)
        self.due_ms: dict[bytes, int] = {}
        self.cancelled: set[bytes] = set()
        """The messages for which a cancellation was requested."""

    def attach(self) -> None:
        writer = self.scenario.create_client(TopicWriter, "later-writer", self.history)
        writer.topic, writer.draft = delayed_topic(TOPIC), self._draft
        self.writer, self.writers = writer, [writer]

    def _draft(self, writer: TopicWriter, number: int) -> Draft:
        now_ms = writer.cluster.clock.now_ms()
        repeats = self.repeats and number % 8 == 3
        value = b"%s-%d" % (b"repeated" if repeats else b"later", number)
        self.due_ms[value] = now_ms + self.random.choice(DELAYS_MS)
        headers: tuple[tuple[str, bytes | None], ...] = ((DELIVER_AT, b"%d" % self.due_ms[value]),)
        if repeats:
            headers += ((REPEAT, b"every %dms" % REPEAT_MS),)
        return Draft(value, 0, None, headers, now_ms)

    async def prepare(self, admin: TopicAdmin) -> None:
        configs = {"min.insync.replicas": str(self.random.choice((1, 2)))}
        await create_topic(admin, NewTopic(TOPIC, 1, self.replicas, configs))

    async def recover(self, healed: Mapping[int, int]) -> None:
        await super().recover(healed)
        for broker in self.scenario.cluster.brokers.values():
            broker.host.clock.correct_wall_clock()
        schedule = Schedule(self.scenario.watcher.cluster, TOPIC)
        while True:
            try:
                await self._cancel_repeated(schedule)
                waiting = await schedule.count()
                self.scenario.missing = f"{waiting} messages wait for {TOPIC}"
                if not waiting:
                    return
            except HeadraceError as error:
                self.scenario.missing = f"what waits for {TOPIC} cannot be had: {error}"
            await asyncio.sleep(0.5)

    async def _cancel_repeated(self, schedule: Schedule) -> None:
        for message in await schedule.page(0, -1, -1):
            if (message.value or b"").startswith(b"repeated"):
                self.cancelled.add(message.value or b"")
                with suppress(InvalidRecordState):  # it is being released
                    await schedule.cancel(MessageId(delayed_topic(TOPIC), 0, message.id.offset))

    def audit(self) -> None:
        self.found = [one for part in stored(self.scenario.cluster, TOPIC).values() for one in part.records]

    def anomalies(self) -> Iterator[Anomaly]:
        counts = Counter(one.value for one in self.found)
        for one in self.found:
            value = one.value or b""
            if one.timestamp_ms < self.due_ms[value]:
                yield Anomaly("too early", 0, f"{value!r} came {self.due_ms[value] - one.timestamp_ms} ms too early")
            if counts[value] > 1 and not value.startswith(b"repeated"):
                yield Anomaly("delayed message came twice", 0, f"{value!r}")
        for send in self.history.sends:
            if send.is_ok and not counts[send.value] and send.value not in self.cancelled:
                yield Anomaly("delayed message never came", 0, f"{send.value!r}")
