"""A topic from which messages go, by time, by size, by DeleteRecords or by compaction, while its replicas move.

What was acknowledged is there, unless the topic's own rules let it go: a message below the start of the log must be too
old, too much, or deleted on request; of a compacted log a message goes only if a later one has its key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.simulation.clients import IMPATIENT, Client
from tests.simulation.features.feature import (
    DAY_MS,
    LONG_MAX,
    WITHOUT_GAPS,
    Draft,
    Feature,
    Mover,
    TopicWriter,
    create_topic,
    note_final,
    stored,
)

from headrace.client.admin import NewTopic, TopicAdmin
from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError
from headrace.testkit.anomalies import Anomaly
from headrace.testkit.history import History

if TYPE_CHECKING:
    from tests.simulation.cluster_scenario import ClusterScenario

TOPIC = "short"
KEYS = 6
RETENTION_MS, RETENTION_BYTES = 1500, 3000
TRIM, TIME, SIZE, COMPACT = "trim", "time", "size", "compact"
CONFIGS = {
    TRIM: {},
    TIME: {"retention.ms": str(RETENTION_MS)},
    SIZE: {"retention.bytes": str(RETENTION_BYTES)},
    COMPACT: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
}


class Trimmer(Client):
    """Deletes the records before an offset that was acknowledged, often one in the middle of a batch."""

    settings = IMPATIENT

    async def work(self) -> None:
        self.furthest: dict[int, int] = {}
        admin = TopicAdmin(self.cluster)
        while not self.is_done:
            await self.think(0.8)
            known = [send for send in self.history.sends[-30:] if send.is_ok]
            if known:
                send = self.random.choice(known)
                self.furthest[send.partition] = max(self.furthest.get(send.partition, 0), send.offset)
                with suppress(HeadraceError):
                    await admin.trim({TopicPartition(TOPIC, send.partition): send.offset})


class Retention(Feature):
    settings = {"log.retention.check.interval.ms": "500", "log.cleaner.backoff.ms": "500"}

    def __init__(self, scenario: ClusterScenario) -> None:
        super().__init__(scenario)
        self.kind = self.random.choice((TRIM, TRIM, TIME, SIZE, COMPACT))
        self.partitions = self.random.choice((1, 1, 2))
        self.replicas = self.random.choice((1, 2, 2, 3, 3))
        self.may_replace_disk = self.replicas > 1
        self.configs = {
            "retention.ms": "-1",
            "message.timestamp.after.max.ms": LONG_MAX,
            "segment.bytes": str(self.random.choice((500, 2000))),
            "min.insync.replicas": str(min(self.replicas, self.random.choice((1, 2)))),
            **CONFIGS[self.kind],
        }
        self.age_ms = self.random.choice((0, 0, 30 * DAY_MS, -30 * DAY_MS))
        self.history = History(has_gaps=True)
        self.latest_ms = 0

    def attach(self) -> None:
        writer = self.scenario.client(TopicWriter, "short-writer", self.history)
        writer.topic, writer.draft = TOPIC, self._draft
        self.writer, self.writers = writer, [writer]
        self.trimmer = self.scenario.client(Trimmer, "trimmer", self.history)
        if self.kind == TRIM:
            self.others.append(self.trimmer)
        brokers = list(self.scenario.cluster.brokers)
        if self.random.random() < 0.6:
            mover = self.scenario.client(Mover, "short-mover", self.history)
            mover.targets = [TopicPartition(TOPIC, index) for index in range(self.partitions)]
            mover.brokers, mover.replicas = brokers, self.replicas
            self.others.append(mover)

    def _draft(self, writer: TopicWriter, number: int) -> Draft:
        key = b"key%d" % self.random.randrange(KEYS) if self.kind == COMPACT else None
        age_ms = self.age_ms if self.random.random() < 0.8 else 0
        value = f"{writer.name}-{number}".encode() + b"." * self.random.choice((0, 150))
        now_ms = writer.cluster.clock.now_ms()
        return Draft(value, self.random.randrange(self.partitions), key, (), now_ms - age_ms)

    async def prepare(self, admin: TopicAdmin) -> None:
        await create_topic(admin, NewTopic(TOPIC, self.partitions, self.replicas, self.configs))

    def audit(self) -> None:
        self.found = stored(self.scenario.cluster, TOPIC)
        note_final(self.history, self.found)
        self.latest_ms = self.scenario.latest_clock_ms()

    def anomalies(self) -> Iterator[Anomaly]:
        for rule in WITHOUT_GAPS:
            yield from rule(self.history)
        yield from self._lost()
        for index, partition in self.found.items():
            if self.kind == TRIM and partition.start_offset > self.trimmer.furthest.get(index, 0):
                yield Anomaly("deleted unasked", index, f"the log starts at {partition.start_offset}")
            if self.kind == COMPACT and partition.start_offset:
                yield Anomaly("deleted unasked", index, f"the compacted log starts at {partition.start_offset}")
            if self.kind == SIZE and partition.start_offset and partition.size_bytes < RETENTION_BYTES:
                yield Anomaly("deleted unasked", index, f"only {partition.size_bytes} bytes are left")

    def _lost(self) -> Iterator[Anomaly]:
        for send in self.history.sends:
            partition = self.found[send.partition]
            if not send.is_ok or send.offset < 0:
                continue
            if send.offset < partition.start_offset:
                is_young = self.writer.sent[send.value].draft.timestamp_ms + RETENTION_MS > self.latest_ms
                if self.kind == TIME and is_young:
                    yield Anomaly("deleted too early", send.partition, f"{send.value[:20]!r} at {send.offset}")
                continue
            at = {one.offset: one for one in partition.records}
            if send.offset not in at and not (self.kind == COMPACT and self._is_replaced(send.value, send.offset)):
                yield Anomaly("lost", send.partition, f"{send.value[:20]!r} at {send.offset} was acknowledged")

    def _is_replaced(self, value: bytes, offset: int) -> bool:
        """Whether a later message of the same key is there."""
        key = self.writer.sent[value].draft.key
        return any(one.key == key and one.offset > offset for part in self.found.values() for one in part.records)
