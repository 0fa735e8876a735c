"""A topic with unclean elections on request, and possibly `flush.messages` > 1.

- Only an unclean election may lose acknowledged records. A message is in the log, or was delivered to a worker, if it
  was sent after the last unclean election of its partition, and after all leaders that this election replaced knew of
  it.
- A broker that may have lost records that it acknowledged from memory leaves the in-sync set, so this also ends with an
  unclean election.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.simulation.clients import IMPATIENT, Client
from tests.simulation.features.feature import (
    LONG_MAX,
    Draft,
    Fault,
    Feature,
    TopicWriter,
    record_final_logs,
    stored,
    until_drained,
)
from tests.simulation.features.queue_clients import QueueLog, QueueWorker

from headrace.client.admin.cluster_admin import ClusterAdmin
from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError
from headrace.model.registry_records import NO_LEADER, PartitionRecord
from headrace.registry.interface import RegistryEntry, RegistryOperation, SessionState, Set, is_beneath
from headrace.registry.topics import PARTITIONS_KEY, decode_partition, partition_key
from headrace.testkit.anomalies import Anomaly
from headrace.testkit.broker import SimBroker
from headrace.testkit.cluster import SimCluster
from headrace.testkit.history import History, SendOperation
from headrace.testkit.registry import SimRegistry

if TYPE_CHECKING:
    from tests.simulation.cluster_scenario import ClusterScenario

TOPIC, NAME = "risky", "riskers"
SUBSCRIPTION = {
    "share.delivery.count.limit": "1000",
    "share.record.lock.duration.ms": "1000",
    "headrace.retry.backoff.ms": "0",
}


class Elector(Client):
    """Requests an unclean election wherever a partition has no leader."""

    settings = IMPATIENT
    sim: SimCluster
    topic: str

    async def work(self) -> None:
        admin = ClusterAdmin(self.cluster)
        while not self.is_done:
            await self.think(0.5)
            places = [(index, record) for name, index, record in self.sim.places() if name == self.topic]
            without_leader = [TopicPartition(self.topic, index) for index, one in places if one.leader == NO_LEADER]
            if without_leader:
                with suppress(HeadraceError):
                    await admin.elect_unclean(without_leader)


class UncleanElections:
    """Decides which messages of a topic an unclean election may lose.

    - Messages that were sent before the last attempt of an unclean election.
    - Messages that were sent while a leader that the election replaced did not know of it, because it was paused, cut
      off from the registry, or notified late. If all in-sync replicas are like this, for instance because it is the
      only one, it still acknowledges with acks=all, and truncates these messages when it follows the new leader.
      Therefore decision 030 asks the operator to stop the old broker first; the `Elector` does not.
    """

    def __init__(self, cluster: SimCluster, topic: str, history: History) -> None:
        self.last_tried = -1
        """The moment in the history of the last attempt of an unclean election."""
        self._cluster, self._topic, self._history = cluster, topic, history
        self._tried: dict[str, PartitionRecord] = {}
        self._sent_to_replaced: set[bytes] = set()
        registry = cluster.registry
        self._on_commit, registry.on_commit = registry.on_commit, self._note_commit

    def note_draft(self, value: bytes, partition: int) -> None:
        """Call this immediately before the message is sent."""
        if any(self._is_unaware(broker, partition) for broker in self._cluster.brokers.values()):
            self._sent_to_replaced.add(value)

    def may_lose(self, send: SendOperation) -> bool:
        return send.began <= self.last_tried or send.value in self._sent_to_replaced

    def _note_commit(
        self, client: SimRegistry, operations: Sequence[RegistryOperation], state: SessionState | None
    ) -> None:
        if self._on_commit is not None:
            self._on_commit(client, operations, state)
        for operation in operations:
            entry = self._cluster.registry.entries.get(operation.key)
            if entry is None or not isinstance(operation, Set) or not is_beneath(operation.key, PARTITIONS_KEY):
                continue
            record = decode_partition(RegistryEntry(operation.key, operation.value, operation.version))
            if record.unclean_epoch > decode_partition(entry).unclean_epoch:
                self.last_tried = self._history.now
                known = self._tried.get(operation.key)
                if known is None or known.leader_epoch < record.leader_epoch:  # a paused broker tries old epochs again
                    self._tried[operation.key] = record

    def _is_unaware(self, broker: SimBroker, partition: int) -> bool:
        """Return whether the broker was elected before the unclean election, and does not know of the latter yet."""
        running = broker.running
        topic = None if running is None else running.catalogue.find(self._topic)
        if running is None or topic is None or partition not in topic.partition_records:
            return False
        tried = self._tried.get(partition_key(topic.id, partition))
        if tried is None or topic.partition_records[partition].leader_epoch >= tried.leader_epoch:
            return False
        start = broker.node_id, running.identity.epoch
        return any((one.node_id, one.broker_epoch) == start for one in tried.past)


class Unclean(Feature):
    needs_broker_clocks = True
    settings = {"log.cleaner.backoff.ms": "300"}

    def __init__(self, scenario: ClusterScenario) -> None:
        super().__init__(scenario)
        self.replicas = self.random.choice((2, 3))
        self.is_acked = self.random.random() < 0.6
        self.configs = {
            "min.insync.replicas": "1",
            "flush.messages": self.random.choice(("1", "1", "20")),
            "retention.ms": "-1",
            "message.timestamp.after.max.ms": LONG_MAX,
            "segment.bytes": str(self.random.choice((300, 1000))),
            **({"retention.mode": "acked"} if self.is_acked else {}),
        }
        self.history, self.log = History(has_gaps=True), QueueLog()
        self.workers: list[QueueWorker] = []

    def attach(self) -> None:
        writer = self.scenario.create_client(TopicWriter, "risky-writer", self.history)
        writer.topic, writer.draft, writer.pause_seconds = TOPIC, self._draft, 0.15
        self.writer, self.writers = writer, [writer]
        elector = self.scenario.create_client(Elector, "elector", self.history)
        elector.sim, elector.topic = self.scenario.cluster, TOPIC
        self.others = [elector]
        if self.is_acked:
            worker = self.scenario.create_client(QueueWorker, "risky-worker", self.history)
            worker.topic, worker.subscription, worker.configs, worker.log = TOPIC, NAME, SUBSCRIPTION, self.log
            self.workers = [worker]
        self.elections = UncleanElections(self.scenario.cluster, TOPIC, self.history)

    @property
    def clients(self) -> list[Client]:
        return [*super().clients, *self.workers]

    def _draft(self, writer: TopicWriter, number: int) -> Draft:
        value = f"{writer.name}-{number}".encode()
        self.elections.note_draft(value, 0)
        return Draft(value, 0, timestamp_ms=writer.cluster.clock.now_ms())

    async def prepare(self, admin: TopicAdmin) -> None:
        await self.create_known_topic(admin, NewTopic(TOPIC, 1, self.replicas, self.configs))
        if self.is_acked:
            await SubscriptionAdmin(self.scenario.watcher.cluster).create(TOPIC, NAME, Position(START), SUBSCRIPTION)

    def faults(self) -> list[Fault]:
        return [self._force_unclean_election]

    async def _force_unclean_election(self) -> None:
        """Keep the followers down until none is in sync with the leader, then stop the leader."""
        cluster = self.scenario.cluster
        record = next(record for name, _, record in cluster.places() if name == TOPIC)
        if record.leader not in cluster.brokers:
            return
        followers = [cluster.brokers[node_id] for node_id in record.replicas if node_id != record.leader]
        for broker in followers:
            broker.kill()
        await asyncio.sleep(self.random.choice((2.5, 3.5)))
        leader = cluster.brokers[record.leader]
        leader.kill()
        for broker in followers:
            if broker.is_down:
                await broker.start()
        await asyncio.sleep(self.random.choice((0.5, 2.0)))
        if leader.is_down:
            await leader.start()

    async def recover(self, healed: Mapping[int, int]) -> None:
        workers, self.workers = self.workers, []
        await super().recover(healed)
        self.workers = workers
        if workers:
            await until_drained(self.scenario, TOPIC, NAME, workers)

    def audit(self) -> None:
        record_final_logs(self.history, stored(self.scenario.cluster, TOPIC))

    def anomalies(self) -> Iterator[Anomaly]:
        there = {value for log in self.history.final.values() for _, value in log}
        there |= {one.value for one in self.log.delivered}
        for send in self.history.sends:
            if send.is_ok and not self.elections.may_lose(send) and send.value not in there:
                detail = f"{send.value!r} at {send.offset} was sent at {send.began}, after {self.elections.last_tried}"
                yield Anomaly("lost, but not by an unclean election", send.partition, detail)
