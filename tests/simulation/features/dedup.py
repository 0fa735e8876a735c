"""A topic with a dedup window: each id is sent repeatedly and stored once, whatever the timestamps are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.simulation.features.feature import (
    DAY_MS,
    LONG_MAX,
    Draft,
    Feature,
    TopicWriter,
    create_topic,
    record_final_logs,
    stored,
)

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.produce.producer import ProducerSettings
from headrace.model.message_headers import DEDUP_ID
from headrace.testkit.anomalies import Anomaly, duplicates, find_unseen, unexpected
from headrace.testkit.history import History

if TYPE_CHECKING:
    from tests.simulation.cluster_scenario import ClusterScenario

TOPIC = "once"
PARTITIONS = 2
WINDOW_MS = 10 * DAY_MS  # much longer than any clock jump
AGAIN_CHANCE = 0.6


class Dedup(Feature):
    def __init__(self, scenario: ClusterScenario) -> None:
        super().__init__(scenario)
        self.replicas = self.random.choice((1, 2, 3))
        self.may_replace_disk = self.replicas > 1
        self.age_ms = self.random.choice((0, 400 * DAY_MS, 400 * DAY_MS, -400 * DAY_MS))
        self.configs = {
            "dedup.window.ms": str(WINDOW_MS),
            "retention.ms": "-1",
            "message.timestamp.after.max.ms": LONG_MAX,
            "min.insync.replicas": str(min(self.replicas, self.random.choice((1, 2)))),
        }
        self.history = History(has_gaps=True)

    def attach(self) -> None:
        writer = self.scenario.create_client(TopicWriter, "once-writer", self.history)
        writer.topic, writer.draft, writer.counts = TOPIC, self._draft, (1,)
        writer.producing = ProducerSettings(
            delivery_timeout_seconds=60.0, idempotent=self.random.random() < 0.5, linger_seconds=0.0
        )
        self.writers = [writer]

    def _draft(self, writer: TopicWriter, number: int) -> Draft:
        if number > 1 and self.random.random() < AGAIN_CHANCE:
            number = self.random.randrange(1, number)
        value = b"once-%d" % number
        timestamp_ms = writer.cluster.clock.now_ms() - self.age_ms
        return Draft(value, number % PARTITIONS, None, ((DEDUP_ID, value),), timestamp_ms)

    async def prepare(self, admin: TopicAdmin) -> None:
        await create_topic(admin, NewTopic(TOPIC, PARTITIONS, self.replicas, self.configs))

    def audit(self) -> None:
        record_final_logs(self.history, stored(self.scenario.cluster, TOPIC))

    def anomalies(self) -> Iterator[Anomaly]:
        for rule in (duplicates, unexpected, find_unseen):
            yield from rule(self.history)
