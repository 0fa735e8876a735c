"""The base classes of features about broken storage: their topic, the choice of a replica, and an operator.

- The topic is written and read continuously, always from the start of the log, so that old segments are read from the
  disk. At the end, all acknowledged records must be intact in every replica's log at the returned offsets.
- A log is damaged or lost only while every replica of its partition is in sync: the other replicas then have all
  committed records. `min.insync.replicas` is at least 2, so that the damaged replica commits nothing alone before its
  broker detects the damage.
- The operator restarts a broker that detected damage at run time, as the alert about a quarantined log asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from tests.simulation.clients import Client, record_tuples
from tests.simulation.features.feature import (
    LONG_MAX,
    POLL_SECONDS,
    Draft,
    Fault,
    Feature,
    TopicWriter,
    create_topic,
    record_final_logs,
    stored,
)

from headrace.broker.partition import Partition
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.fetch.consumer import Consumer
from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError
from headrace.model.registry_records import PartitionRecord
from headrace.storage.log.log import Log
from headrace.storage.store.scrub import scrub_step
from headrace.testkit.anomalies import Anomaly, find_replicated_anomalies
from headrace.testkit.broker import DATA, SimBroker
from headrace.testkit.cluster import SimCluster
from headrace.testkit.history import History

if TYPE_CHECKING:
    from tests.simulation.cluster_scenario import ClusterScenario

PARTITIONS = 2
DOWN_SECONDS = (0.0, 0.3, 1.0, 4.0)
SCRUB_CHANCE = 0.2
WEIGHT = 4
"""The weight of a storage fault in the list of faults."""
CLEAN_SHUTDOWN = f"{DATA}/clean-shutdown"


class Rereader(Client):
    """Reads the topic from its start, repeatedly."""

    topic: str
    partitions: int

    async def work(self) -> None:
        begin, number = {TopicPartition(self.topic, index): 0 for index in range(self.partitions)}, 0
        while not self.is_done:
            number += 1
            with suppress(HeadraceError):
                async with Consumer(self.cluster, partitions=begin) as consumer:
                    await self._read(consumer, f"{self.name} {number}")
            await self.think(0.3)

    async def _read(self, consumer: Consumer, name: str) -> None:
        records = [*await consumer.poll(self.random.randint(1, 50), timeout_seconds=0.5)]
        while records and not self.is_done:
            self.history.record_poll(name, record_tuples(records))
            await self.think(0.1)
            records = [*await consumer.poll(self.random.randint(1, 50), timeout_seconds=0.5)]


class Repairer(Client):
    """An operator that makes the brokers scrub their logs, and restarts one that has quarantined a log."""

    sim: SimCluster

    async def work(self) -> None:
        while not self.is_done:
            await self.think(0.3)
            for broker in self.sim.brokers.values():
                if broker.broker is not None and live_rot(broker) and self.random.random() < SCRUB_CHANCE:
                    logs = list(broker.broker.store.logs.values())
                    broker.host.start(scrub_once(logs), "scrub")
                if broker.is_up and any(not one.is_from_damage for one in quarantined(broker)):
                    await self._restart(broker)
                forget_repaired(broker)

    async def _restart(self, broker: SimBroker) -> None:
        if self.random.random() < 0.5:
            await broker.stop()
        else:
            broker.kill()
        await asyncio.sleep(self.random.choice(DOWN_SECONDS[:3]))
        if broker.is_down:
            await broker.start()


async def scrub_once(logs: Sequence[Log]) -> None:
    """Run one scrub pass, which a broker begins only once a minute."""
    for log in logs:
        while await scrub_step(log):
            pass


class Victim(NamedTuple):
    """One replica, and its broker."""

    broker: SimBroker
    partition: Partition


class StorageFeature(Feature):
    replicas: ClassVar[Sequence[int]] = (2, 3)
    """The possible replication factors of the topic."""
    topic: str

    def __init__(self, scenario: ClusterScenario) -> None:
        super().__init__(scenario)
        self.replica_count = self.random.choice(self.replicas)
        self.configs = {
            "min.insync.replicas": str(min(2, self.replica_count)),
            "segment.bytes": str(self.random.choice((600, 3000, 100_000))),
            "index.interval.bytes": "300",
            "retention.ms": "-1",  # clocks may be wrong
            "message.timestamp.after.max.ms": LONG_MAX,
        }
        self.history = History()

    def attach(self) -> None:
        writer = self.scenario.create_client(TopicWriter, f"{self.topic}-writer", self.history)
        writer.topic, writer.draft = self.topic, self._draft
        reader = self.scenario.create_client(Rereader, f"{self.topic}-reader", self.history)
        reader.topic, reader.partitions = self.topic, PARTITIONS
        self.writers, self.others = [writer], [reader]

    def _draft(self, writer: TopicWriter, number: int) -> Draft:
        value = f"{writer.name}-{number}".encode() + b"." * self.random.choice((0, 150))
        return Draft(value, self.random.randrange(PARTITIONS), timestamp_ms=writer.cluster.clock.now_ms())

    async def prepare(self, admin: TopicAdmin) -> None:
        await create_topic(admin, NewTopic(self.topic, PARTITIONS, self.replica_count, self.configs))

    def audit(self) -> None:
        record_final_logs(self.history, stored(self.scenario.cluster, self.topic))
        cluster = self.scenario.cluster
        self.history.replicas = {index: cluster.replicas(self.topic, index) for index in range(PARTITIONS)}

    def anomalies(self) -> Iterator[Anomaly]:
        yield from find_replicated_anomalies(self.history)

    async def start_again(self, broker: SimBroker) -> None:
        await asyncio.sleep(self.random.choice(DOWN_SECONDS))
        if broker.is_down:
            await broker.start()


class DamagingFeature(StorageFeature):
    """A storage feature that damages replicas, which are then replicated again."""

    is_damaging = False
    """One of its faults is active."""

    def one_at_a_time(self, fault: Fault) -> Fault:
        """Wrap a fault so that it does not start while another one is active. Two streams of faults could otherwise
        both find a partition healthy and damage two of its replicas, before a broker detects it and leaves the in-sync
        set. Then the partition rightly has no leader (seed 1359)."""

        async def run() -> None:
            if self.is_damaging:
                return
            self.is_damaging = True
            try:
                await fault()
            finally:
                self.is_damaging = False

        return run

    async def start_again(self, broker: SimBroker) -> None:
        """Start the broker, repeatedly if necessary: only then do the in-sync sets exclude what it has lost."""
        await super().start_again(broker)
        while not broker.is_up:
            await asyncio.sleep(POLL_SECONDS)
            if broker.is_down:
                await broker.start()

    def attach(self) -> None:
        super().attach()
        self.repairer = self.scenario.create_client(Repairer, f"{self.topic}-repairer", self.history)
        self.repairer.sim = self.scenario.cluster

    @property
    def clients(self) -> list[Client]:
        return [*super().clients, self.repairer]

    async def recover(self, healed: Mapping[int, int]) -> None:
        await self.scenario.until_none(self.unrepaired)
        await super().recover(healed)

    def unrepaired(self) -> list[str]:
        """Describe damage that was not detected, and quarantined logs."""
        found = []
        for broker in self.scenario.cluster.brokers.values():
            found += [f"byte {position} of {path} of broker {broker.node_id}" for path, position in live_rot(broker)]
            found += [f"{one.log.folder} of broker {broker.node_id} is quarantined" for one in quarantined(broker)]
        return found

    def choose_victim(self) -> Victim | None:
        """Choose a replica of a partition whose other replicas are complete."""
        if self.unrepaired():
            return None
        found = []
        for topic, index, record in self.scenario.cluster.places():
            for node_id in record.replicas if is_whole(record) else ():
                partition = self.scenario.cluster.replica(node_id, topic, index)
                broker = self.scenario.cluster.brokers[node_id]
                if partition is not None and broker.is_up and _may_be_damaged(partition):
                    found.append(Victim(broker, partition))
        return self.random.choice(found) if found else None

    async def shut_down(self, broker: SimBroker) -> bool:
        """Stop or kill a broker; return whether it is down and its flushed offsets are durable. After a kill, the page
        cache is written to the disk: otherwise a power failure could revert the flushed offsets, and damage would look
        like the end of an incomplete write."""
        if self.random.random() < 0.5:
            await broker.stop()
            return broker.is_down and broker.host.disk.exists(CLEAN_SHUTDOWN)
        broker.kill()
        broker.host.disk.write_back()
        return True


def is_whole(record: PartitionRecord) -> bool:
    """Return whether every replica is complete."""
    has_latest_data = set(record.isr) == set(record.replicas) and not record.adding and not record.removing
    return has_latest_data and len(record.replicas) > 1


def _may_be_damaged(partition: Partition) -> bool:
    has_records = partition.log.usable and partition.log.flushed_offset > partition.log.start_offset
    return has_records and partition.config.min_insync_replicas >= 2


def quarantined(broker: SimBroker) -> list[Partition]:
    if broker.broker is None:
        return []
    every = [partition for topic in broker.broker.catalogue for partition in topic.replicas.values()]
    return [partition for partition in every if partition.log.quarantined is not None]


def live_rot(broker: SimBroker) -> list[tuple[str, int]]:
    """Return the flipped bits in logs that are in use, or will be when the broker starts."""
    is_aside = (".damaged-", ".deleted/", "/stray/")
    every = broker.host.disk.rotten()
    return [(path, at) for path, at in every if path.endswith(".log") and not any(part in path for part in is_aside)]


def forget_repaired(broker: SimBroker) -> None:
    """From now on, report a quarantine of this log as an error again."""
    if broker.broker is not None and not quarantined(broker) and not live_rot(broker):
        broker.damaged.clear()
