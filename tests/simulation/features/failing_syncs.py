"""Failing syncs of every kind of file and folder, at run time, at the start and at the stop (I1, I23).

- No record is acknowledged that is not on disk. The topic has one replica, so no other one could restore a lost record,
  and a power failure follows most failed syncs.
- The log, or the start of the broker, fails; the next start succeeds.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.simulation.clients import IMPATIENT, Client
from tests.simulation.features.feature import Fault, Mover
from tests.simulation.features.storage_faults import PARTITIONS, WEIGHT, StorageFeature

from headrace.client.admin.topic_admin import TopicAdmin
from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError
from headrace.testkit.broker import DATA, SimBroker
from headrace.testkit.disk import DiskOperation

FILES = (
    "*.log",
    "*.index",
    "*.timeindex",
    "*.checkpoint.tmp",
    "*.gaps",
    "*.gaps.tmp",
    "*.copied-gaps",
    "*/start-offset.tmp",
    "*/restart.tmp",
    "*/compaction.tmp",
    "*/cleaned/*",
    "*/logs/*",
    f"{DATA}/flushed-offsets",
    f"{DATA}/broker.tmp",
    f"{DATA}/producer-ids.tmp",
    f"{DATA}/clean-shutdown.tmp",
    f"{DATA}/topics/*",
    "*",
)
FOLDERS = (DATA, f"{DATA}/logs", f"{DATA}/logs/*", f"{DATA}/topics", "*")
WAITS_SECONDS = 1.0
STAYS_SECONDS = (0.0, 0.02, 0.1, 1.0)
OWN_CHANCE = 0.4
POLL_SECONDS = 0.005
FAILURES = (1, 1, 1, 3)


class Trimmer(Client):
    """Deletes the records before an acknowledged offset."""

    settings = IMPATIENT
    topic: str

    async def work(self) -> None:
        admin = TopicAdmin(self.cluster)
        while not self.is_done:
            await self.think(1.5)
            known = [send for send in self.history.sends[-30:] if send.is_ok and send.offset >= 0]
            if known:
                send = self.random.choice(known)
                deleted = self.history.deleted
                deleted[send.partition] = max(deleted.get(send.partition, 0), send.offset)
                with suppress(HeadraceError):
                    await admin.trim({TopicPartition(self.topic, send.partition): send.offset})


class FailingSyncs(StorageFeature):
    topic = "alone"
    replicas = (1,)
    may_replace_disk = False
    settings = {
        "log.cleaner.backoff.ms": "500",
        "log.cleaner.min.cleanable.ratio": "0.1",
        "offsets.topic.segment.bytes": "2000",
        "transaction.state.log.segment.bytes": "2000",
    }

    def attach(self) -> None:
        super().attach()
        if self.random.random() < 0.4:
            trimmer = self.scenario.create_client(Trimmer, "alone-trimmer", self.history)
            trimmer.topic = self.topic
            self.others.append(trimmer)
        if self.random.random() < 0.4:
            mover = self.scenario.create_client(Mover, "alone-mover", self.history)
            mover.targets = [TopicPartition(self.topic, index) for index in range(PARTITIONS)]
            mover.brokers, mover.replicas = list(self.scenario.cluster.brokers), 1
            self.others.append(mover)

    def faults(self) -> list[Fault]:
        return [*[self._fail_at_run_time] * WEIGHT, self._fail_at_start, self._fail_at_stop]

    def _draw(self) -> tuple[str, DiskOperation]:
        if self.random.random() < 0.3:
            return self.random.choice(FOLDERS), "sync_directory"
        return self.random.choice(FILES), "sync"

    async def _fail_at_run_time(self) -> None:
        """Cut the power soon after a failed sync: until the next write to the same page, only the broker knows that the
        page is not on disk."""
        broker, pattern = self._own_log() if self.random.random() < OWN_CHANCE else (None, "")
        if broker is None:
            broker = self.random.choice(self.scenario.cluster.up or list(self.scenario.cluster.brokers.values()))
            for _ in range(self.random.choice(FAILURES)):
                broker.fail_next_sync(*self._draw())
        else:
            broker.fail_next_sync(pattern)
        await self._until_failed(broker)
        await asyncio.sleep(self.random.choice(STAYS_SECONDS))
        if self.random.random() < 0.7:
            broker.cut_power()
        else:
            broker.kill()
        await self.start_again(broker)

    def _own_log(self) -> tuple[SimBroker | None, str]:
        """Return a broker that leads a partition of the topic, and the pattern of its log files."""
        cluster = self.scenario.cluster
        for index in self.random.sample(range(PARTITIONS), PARTITIONS):
            for broker in cluster.up:
                partition = cluster.replica(broker.node_id, self.topic, index)
                if partition is not None and partition.is_leader:
                    return broker, f"{partition.log.folder}/*.log"
        return None, ""

    async def _until_failed(self, broker: SimBroker) -> None:
        loop, disk = asyncio.get_running_loop(), broker.host.disk
        pending, deadline = disk.pending_failures, loop.time() + WAITS_SECONDS
        while disk.pending_failures == pending and loop.time() < deadline:
            await asyncio.sleep(POLL_SECONDS)

    async def _fail_at_start(self) -> None:
        """The first start may fail; the second one must cope with what the first one left behind."""
        broker = self.random.choice(list(self.scenario.cluster.brokers.values()))
        broker.kill()
        for _ in range(self.random.choice(FAILURES)):
            broker.fail_next_sync(*self._draw())
        await self.start_again(broker)
        broker.cut_power()
        await self.start_again(broker)

    async def _fail_at_stop(self) -> None:
        broker = self.random.choice(list(self.scenario.cluster.brokers.values()))
        if broker.is_up:
            for _ in range(self.random.choice(FAILURES)):
                broker.fail_next_sync(*self._draw())
            await broker.stop()
            broker.cut_power()
            await self.start_again(broker)
