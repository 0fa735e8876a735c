"""A topic whose messages are removed by time, size, DeleteRecords or compaction while its replicas are reassigned.

Acknowledged messages are in the log unless the topic's rules allow their removal: a message below the log start must be
too old, exceed the size, or be deleted on request; compaction removes a message only if a later one has its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.simulation.clients import IMPATIENT, Client
from tests.simulation.features.feature import (
    DAY_MS,
    LONG_MAX,
    WITHOUT_GAPS,
    Draft,
    Fault,
    Feature,
    Mover,
    TopicWriter,
    create_topic,
    record_final_logs,
    stored,
)
from tests.simulation.features.plain_produce import LEADER, produce

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError
from headrace.testkit.anomalies import Anomaly
from headrace.testkit.history import History
from headrace.wire.batches.batch import BatchRecord

if TYPE_CHECKING:
    from tests.simulation.cluster_scenario import ClusterScenario

TOPIC = "short"
KEYS = 6
LAG_CHANCE = 0.4
LAG_SECONDS = (1.0, 1.8, 3.0)
"""Shorter and longer than `replica.lag.time.max.ms`."""
LAG_WEIGHT = 6
"""The weight of the fault in the list of faults."""
RETENTION_MS, RETENTION_BYTES = 1500, 3000
SHORT_RETENTION_MS, SHORT_RETENTION_BYTES = 200, 600
TRIM, TIME, SIZE, COMPACT = "trim", "time", "size", "compact"


class Trimmer(Client):
    """Deletes the records before an acknowledged offset, often one in the middle of a batch."""

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


class LeaderWriter(Client):
    """Writes with acks=1, each batch once: the leader has it above the high watermark while followers lag."""

    settings = IMPATIENT
    partitions: int
    age_ms: int

    async def work(self) -> None:
        number = 0
        while not self.is_done:
            number += 1
            partition = self.random.randrange(self.partitions)
            values = [f"{self.name}-{number}-{at}".encode() + b"." * 150 for at in range(self.random.randint(1, 4))]
            for value in values:
                self.history.begin_send(self.name, partition, value)
            timestamp_ms = self.cluster.clock.now_ms() - self.age_ms
            records = [BatchRecord(value=value, timestamp_ms=timestamp_ms) for value in values]
            with suppress(HeadraceError):
                await produce(self.cluster, TOPIC, partition, records, LEADER)
            await self.think(0.12)


class Retention(Feature):
    settings = {"log.retention.check.interval.ms": "500", "log.cleaner.backoff.ms": "500"}

    def __init__(self, scenario: ClusterScenario) -> None:
        super().__init__(scenario)
        self.lags = self.random.random() < LAG_CHANCE
        self.kind = self.random.choice((TIME, SIZE) if self.lags else (TRIM, TRIM, TIME, SIZE, COMPACT))
        self.partitions = self.random.choice((1, 1, 2))
        self.replicas = self.random.choice((2, 2, 3) if self.lags else (1, 2, 2, 3, 3))
        self.may_replace_disk = self.replicas > 1
        self.retention_ms = SHORT_RETENTION_MS if self.lags else RETENTION_MS
        retention_bytes = SHORT_RETENTION_BYTES if self.lags else RETENTION_BYTES
        configs = {
            TRIM: {},
            TIME: {"retention.ms": str(self.retention_ms)},
            SIZE: {"retention.bytes": str(retention_bytes)},
            COMPACT: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
        }
        self.configs = {
            "retention.ms": "-1",
            "message.timestamp.after.max.ms": LONG_MAX,
            "segment.bytes": str(self.random.choice((300, 500) if self.lags else (500, 2000))),
            "min.insync.replicas": str(min(self.replicas, self.random.choice((1, 2, 2) if self.lags else (1, 2)))),
            **configs[self.kind],
        }
        self.age_ms = self.random.choice((0, 30 * DAY_MS) if self.lags else (0, 0, 30 * DAY_MS, -30 * DAY_MS))
        self.history = History(has_gaps=True)
        self.leader_writers: list[LeaderWriter] = []
        self.latest_ms = 0

    def attach(self) -> None:
        writer = self.scenario.create_client(TopicWriter, "short-writer", self.history)
        writer.topic, writer.draft = TOPIC, self._draft
        self.writer, self.writers = writer, [writer]
        self.trimmer = self.scenario.create_client(Trimmer, "trimmer", self.history)
        if self.kind == TRIM:
            self.others.append(self.trimmer)
        brokers = list(self.scenario.cluster.brokers)
        if self.random.random() < (0.2 if self.lags else 0.6):
            mover = self.scenario.create_client(Mover, "short-mover", self.history)
            mover.targets = [TopicPartition(TOPIC, index) for index in range(self.partitions)]
            mover.brokers, mover.replicas = brokers, self.replicas
            self.others.append(mover)
        if self.lags:
            leader_writer = self.scenario.create_client(LeaderWriter, "short-leader-writer", self.history)
            leader_writer.partitions, leader_writer.age_ms = self.partitions, self.age_ms
            self.others.append(leader_writer)
            self.leader_writers.append(leader_writer)

    def faults(self) -> list[Fault]:
        return [self._let_followers_lag] * LAG_WEIGHT if self.lags else []

    async def _let_followers_lag(self) -> None:
        """Isolate or pause the followers of a partition while the leader keeps appending. Then usually the leader
        fails, and a follower that lacks the uncommitted records becomes leader."""
        cluster, network = self.scenario.cluster, self.scenario.world.network
        index = self.random.randrange(self.partitions)
        record = next(record for name, at, record in cluster.places() if (name, at) == (TOPIC, index))
        if record.leader not in cluster.brokers:
            return
        leader = cluster.brokers[record.leader]
        followers = [cluster.brokers[node_id] for node_id in record.replicas if node_id != record.leader]
        seconds = self.random.choice(LAG_SECONDS)
        for follower in followers:
            if self.random.random() < 0.7:
                network.cut(leader.host.name, follower.host.name)
            elif not follower.host.is_paused:
                follower.host.pause(seconds)
        await asyncio.sleep(seconds)
        fails = self.random.random() < 0.8
        if fails:
            cluster.expire(leader)
            leader.kill()
        for follower in followers:
            network.heal(leader.host.name, follower.host.name)
        if fails:
            await asyncio.sleep(self.random.choice((0.3, 1.0, 2.5)))
            if leader.is_down:
                await leader.start()

    def _draft(self, writer: TopicWriter, number: int) -> Draft:
        key = b"key%d" % self.random.randrange(KEYS) if self.kind == COMPACT else None
        age_ms = self.age_ms if self.random.random() < 0.8 else 0
        value = f"{writer.name}-{number}".encode() + b"." * self.random.choice((0, 150))
        now_ms = writer.cluster.clock.now_ms()
        return Draft(value, self.random.randrange(self.partitions), key, (), now_ms - age_ms)

    async def prepare(self, admin: TopicAdmin) -> None:
        await create_topic(admin, NewTopic(TOPIC, self.partitions, self.replicas, self.configs))

    async def recover(self, healed: Mapping[int, int]) -> None:
        # The writer waits for no follower, and could outrun one with small fetches and a slow disk forever.
        for leader_writer in self.leader_writers:
            leader_writer.is_done = True
        await super().recover(healed)

    def audit(self) -> None:
        self.found = stored(self.scenario.cluster, TOPIC)
        record_final_logs(self.history, self.found)
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
            # Records above the high watermark count for the size, and a change of leader may remove them.
            is_small = partition.start_offset and partition.size_bytes < RETENTION_BYTES
            if self.kind == SIZE and is_small and not self.lags:
                yield Anomaly("deleted unasked", index, f"only {partition.size_bytes} bytes are left")

    def _lost(self) -> Iterator[Anomaly]:
        for send in self.history.sends:
            partition = self.found[send.partition]
            if not send.is_ok or send.offset < 0:
                continue
            if send.offset < partition.start_offset:
                is_young = self.writer.sent[send.value].draft.timestamp_ms + self.retention_ms > self.latest_ms
                if self.kind == TIME and is_young:
                    yield Anomaly("deleted too early", send.partition, f"{send.value[:20]!r} at {send.offset}")
                continue
            at = {one.offset: one for one in partition.records}
            if send.offset not in at and not (self.kind == COMPACT and self._is_replaced(send.value, send.offset)):
                yield Anomaly("lost", send.partition, f"{send.value[:20]!r} at {send.offset} was acknowledged")

    def _is_replaced(self, value: bytes, offset: int) -> bool:
        """Return whether a later message of the same key is in the log."""
        key = self.writer.sent[value].draft.key
        return any(one.key == key and one.offset > offset for part in self.found.values() for one in part.records)
