"""A queue: workers ack, nack, abandon and reject messages while brokers fail.

The seed draws the delivery order (none, per key, priority), a filter, acked retention, transactional writers and added
partitions. The rules:

- A message is never delivered again after its ack was confirmed.
- Every message is acked, or is a dead letter, once, if it was rejected or delivered too often. This includes the first
  messages of an added partition.
- With key order, a message is delivered after all earlier messages of its key are settled.
- Without faults, only messages that arrive within the difference of the slacks, plus the time between two leases,
  overtake a message.
- Messages that the filter excludes and messages of aborted transactions are never delivered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tests.simulation.clients import Client
from tests.simulation.features.feature import (
    DAY_MS,
    LONG_MAX,
    WITHOUT_GAPS,
    Draft,
    Feature,
    TopicWriter,
    open_transactions,
    record_final_logs,
    stored,
    until_drained,
)
from tests.simulation.features.queue_clients import (
    LEASE_SECONDS,
    POISON,
    Grower,
    JobWriter,
    QueueLog,
    QueueWorker,
    TransactionWriter,
)
from tests.simulation.features.queue_rules import (
    come_back,
    dead_places,
    dead_twice,
    delivered_unwanted,
    not_dead,
    not_settled,
    out_of_key_order,
    overtaken,
)

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.model.message_headers import PRIORITY
from headrace.model.names import dead_letter_topic
from headrace.testkit.anomalies import Anomaly
from headrace.testkit.history import History

if TYPE_CHECKING:
    from tests.simulation.cluster_scenario import ClusterScenario

TOPIC, NAME = "jobs", "workers"
KEYS = 4
SLACKS_MS = tuple(range(900, -1, -100))
PLAIN, KEYED, PRIORITIES, FILTERED = "plain", "keyed", "priorities", "filtered"
ORDERS: dict[str, dict[str, str]] = {
    PLAIN: {},
    KEYED: {"headrace.key.concurrency": "1"},
    PRIORITIES: {"headrace.priority.slack.ms": ",".join(map(str, SLACKS_MS))},
    FILTERED: {"headrace.filter": "header.kind = 'wanted'"},
}


class Queue(Feature):
    needs_broker_clocks = True
    settings = {"log.cleaner.backoff.ms": "400"}

    def __init__(self, scenario: ClusterScenario) -> None:
        super().__init__(scenario)
        draw = self.random
        self.order = draw.choice((PLAIN, KEYED, KEYED, PRIORITIES, PRIORITIES, FILTERED))
        self.disables_faults = self.order == PRIORITIES and draw.random() < 0.5
        self.replicas = draw.choice((2, 3))
        self.partitions = draw.choice((1, 1, 2))
        self.grows = draw.random() < 0.3
        self.is_transactional = draw.random() < 0.35
        self.limit = draw.choice((2, 3, 1000))
        self.poison_chance = draw.choice((0.0, 0.1, 0.3))
        self.ages_ms = draw.choice(((0,), (3_600_000,), (0, 400 * DAY_MS, -DAY_MS)))
        self.configs = {
            "retention.ms": "-1",
            "message.timestamp.after.max.ms": LONG_MAX,
            "min.insync.replicas": str(draw.choice((1, 2))),
        }
        if draw.random() < 0.6:
            self.configs |= {"retention.mode": "acked", "segment.bytes": str(draw.choice((300, 600, 2000)))}
        self.subscription = {
            "share.delivery.count.limit": str(self.limit),
            "share.record.lock.duration.ms": f"{LEASE_SECONDS * 1000:.0f}",
            "headrace.retry.backoff.ms": str(draw.choice((0, 200, 2000))),
            "share.isolation.level": "read_committed" if self.is_transactional else "read_uncommitted",
            **ORDERS[self.order],
        }
        self.history, self.log = History(has_gaps=True), QueueLog()

    def attach(self) -> None:
        scenario = self.scenario
        kind = TransactionWriter if self.is_transactional else JobWriter
        writer = scenario.create_client(kind, "job-writer", self.history)
        writer.topic, writer.draft, writer.pause_seconds = TOPIC, self._draft, 0.15
        self.writer, self.writers = writer, [writer]
        self.grower = scenario.create_client(Grower, "grower", self.history)
        self.grower.topic, self.grower.partitions = TOPIC, self.partitions
        self.grower.limit = self.partitions + self.random.randint(1, 2) if self.grows else 0
        self.workers = [
            scenario.create_client(QueueWorker, f"job-worker{number}", self.history)
            for number in range(1 if self.order == PRIORITIES else self.random.randint(1, 3))
        ]
        for worker in self.workers:
            worker.topic, worker.subscription, worker.configs = TOPIC, NAME, self.subscription
            worker.log = self.log
            if self.order == PRIORITIES:
                worker.counts, worker.pause_seconds = (1, 3), 0.2
        self.others = [self.grower]

    @property
    def clients(self) -> list[Client]:
        return [*super().clients, *self.workers]

    def _draft(self, writer: TopicWriter, number: int) -> Draft:
        draw = self.random
        name = f"{writer.name}-{number}".encode()
        value = (POISON if draw.random() < self.poison_chance else b"job") + name + b"." * draw.choice((0, 100))
        key = b"key%d" % draw.randrange(KEYS) if self.order == KEYED else None
        priority = draw.choice((0, 9, 9, 9))
        headers = (
            ("kind", draw.choice((b"wanted", b"unwanted"))),
            (PRIORITY, b"%d" % priority),
        )
        age_ms = draw.choice(self.ages_ms) if priority == 9 else 0
        timestamp_ms = writer.cluster.clock.now_ms() - age_ms
        return Draft(value, draw.randrange(self.grower.partitions), key, headers, timestamp_ms)

    async def prepare(self, admin: TopicAdmin) -> None:
        await self.create_known_topic(admin, NewTopic(TOPIC, self.partitions, self.replicas, self.configs))
        subscriptions = SubscriptionAdmin(self.scenario.watcher.cluster)
        await subscriptions.create(TOPIC, NAME, Position(START), self.subscription)

    async def recover(self, healed: Mapping[int, int]) -> None:
        workers, self.workers = self.workers, []
        await super().recover(healed)
        self.workers = workers
        await self.scenario.until_none(lambda: open_transactions(self.scenario.cluster, TOPIC))
        await until_drained(self.scenario, TOPIC, NAME, workers)

    def audit(self) -> None:
        cluster = self.scenario.cluster
        record_final_logs(self.history, stored(cluster, TOPIC))
        self.dead = [one for part in stored(cluster, dead_letter_topic(TOPIC)).values() for one in part.records]

    def anomalies(self) -> Iterator[Anomaly]:
        for rule in WITHOUT_GAPS:
            yield from rule(self.history)
        sent, dead = self.writer.sent, dead_places(self.dead)
        yield from come_back(self.workers)
        yield from not_settled(self.history, self.log, dead, self._is_wanted)
        yield from not_dead(self.log, dead)
        yield from dead_twice(self.dead)
        yield from delivered_unwanted(self.log, self.history, self._is_wanted)
        if self.order == KEYED:
            yield from out_of_key_order(self.log, sent, dead)
        if self.disables_faults:
            yield from overtaken(self.log, sent, SLACKS_MS)

    def _is_wanted(self, value: bytes) -> bool:
        return self.order != FILTERED or dict(self.writer.sent[value].draft.headers)["kind"] == b"wanted"
