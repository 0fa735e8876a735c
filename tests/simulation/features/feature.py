"""The base class of features, and the clients that several of them use.

A feature is created before the cluster, so that it can set options of brokers. It draws from its own random stream, so
that adding a feature does not change what others draw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.clients import IMPATIENT, PATIENT, Client

from headrace.client.admin.cluster_admin import ClusterAdmin
from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Delivery, Header, Producer, ProducerSettings
from headrace.model.errors import HeadraceError, TopicAlreadyExists
from headrace.testkit.anomalies import (
    Anomaly,
    duplicates,
    inconsistent_offsets,
    nonmonotonic_sends,
    real_time_order,
    unexpected,
)
from headrace.testkit.cluster import SimCluster
from headrace.testkit.history import History, SendOperation
from headrace.wire.batches.batch import parse_header, read_records

if TYPE_CHECKING:
    from tests.simulation.cluster_scenario import ClusterScenario
    from tests.simulation.queue_scenario import Worker

Fault = Callable[[], Awaitable[None]]
LONG_MAX = str(2**63 - 1)
DAY_MS = 86_400_000
POLL_SECONDS = 0.25
RECORD_BYTES_MAX = 1 << 24
WITHOUT_GAPS = (inconsistent_offsets, duplicates, unexpected, nonmonotonic_sends, real_time_order)
"""The rules for a log from which messages are removed on purpose."""


class Feature:
    settings: Mapping[str, str] = {}
    """Settings of the brokers."""
    topic_configs: Mapping[str, str] = {}
    """Configs of the topics that every scenario has."""
    may_replace_disk = True
    """Every topic of the feature has another replica."""
    needs_broker_clocks = False
    """The feature depends on brokers agreeing on the time."""
    disables_faults = False
    """The scenario injects no faults, because the feature checks more without them."""
    recovery_seconds = 0.0
    """Additional time for the recovery, which includes what the feature does to the healed cluster."""

    def __init__(self, scenario: ClusterScenario) -> None:
        self.scenario = scenario
        self.random = Random(f"{type(self).__name__} {scenario.seed}")
        self.writers: list[Client] = []
        self.others: list[Client] = []

    @property
    def clients(self) -> list[Client]:
        return [*self.writers, *self.others]

    def attach(self) -> None:
        """Create the clients, before the cluster starts."""

    async def prepare(self, admin: TopicAdmin) -> None:
        """Create the topics, before the first fault."""

    async def create_known_topic(self, admin: TopicAdmin, topic: NewTopic) -> None:
        """Create a topic and wait until every broker knows it. A client gives up on a topic that the broker it asks
        does not know, and a registry may lag by seconds."""
        await create_topic(admin, topic)
        await self.scenario.until_none(lambda: self.scenario.cluster.unknown_topics([topic.name]))

    def faults(self) -> list[Fault]:
        return []

    async def recover(self, healed: Mapping[int, int]) -> None:
        """After healing: every writer succeeds once more, then all clients finish."""
        await self.scenario.until_none(lambda: list(self._silent(healed)))
        for client in self.clients:
            client.is_done = True
        await self.scenario.until_none(lambda: self.scenario.unfinished(*self.clients))

    def audit(self) -> None:
        """Record the content of the logs after recovery, when all clients are done."""

    def anomalies(self) -> Iterator[Anomaly]:
        return iter(())

    def _silent(self, healed: Mapping[int, int]) -> Iterator[str]:
        for writer in self.writers:
            sends = writer.history.sends
            if not any(
                one.client == writer.name and one.is_ok and one.began > healed[id(writer.history)] for one in sends
            ):
                yield f"{writer.name} does not get through"


# Clients


class Draft(NamedTuple):
    """A record to be written."""

    value: bytes
    partition: int
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int = 0


@dataclass(slots=True)
class Sent:
    """A written record, with the virtual times of its send and acknowledgement."""

    draft: Draft
    began_seconds: float
    ended_seconds: float | None = None
    send: SendOperation | None = None


class TopicWriter(Client):
    """An idempotent producer for the topic of a feature. `draft` creates its records; `counts` are the numbers of
    records in flight, `pause_seconds` is the pause after them."""

    topic: str
    draft: Callable[[TopicWriter, int], Draft]
    counts: tuple[int, ...] = (1, 2, 5)
    pause_seconds = 0.3
    producing = ProducerSettings(
        delivery_timeout_seconds=60.0, topic_wait_seconds=PATIENT.deadline_seconds, linger_seconds=0.02
    )
    number = 0

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.sent: dict[bytes, Sent] = {}

    async def work(self) -> None:
        async with Producer(self.cluster, self.producing) as producer:
            while not self.is_done:
                async with asyncio.TaskGroup() as under_way:
                    for _ in range(self.random.choice(self.counts)):
                        self.number += 1
                        with suppress(HeadraceError):  # such as an unknown partition
                            send, delivery = await self.submit(producer, self.draft(self, self.number))
                            under_way.create_task(self._settle(send, delivery))
                await self.think(self.pause_seconds)

    async def submit(self, producer: Producer, draft: Draft) -> tuple[SendOperation, Delivery]:
        value, partition, key, headers, timestamp_ms = draft
        send = self.begin(draft)
        delivery = await producer.submit(
            self.topic, value, partition=partition, key=key, headers=headers, timestamp_ms=timestamp_ms
        )
        return send, delivery

    def begin(self, draft: Draft) -> SendOperation:
        self.sent[draft.value] = sent = Sent(draft, asyncio.get_running_loop().time())
        sent.send = self.history.begin_send(self.name, draft.partition, draft.value)
        return sent.send

    def end(self, send: SendOperation, offset: int) -> None:
        self.history.end_send(send, offset)
        self.sent[send.value].ended_seconds = asyncio.get_running_loop().time()

    async def _settle(self, send: SendOperation, delivery: Delivery) -> None:
        with suppress(HeadraceError):  # the record may be in the log or not, now or later
            self.end(send, (await delivery).offset)


class Mover(Client):
    """Reassigns the replicas of a topic to other brokers."""

    settings = IMPATIENT
    targets: list[TopicPartition]
    brokers: list[int]
    replicas: int

    async def work(self) -> None:
        admin = ClusterAdmin(self.cluster)
        while not self.is_done:
            await self.think(1.5)
            with suppress(HeadraceError):
                await admin.move({self.random.choice(self.targets): self.random.sample(self.brokers, self.replicas)})


async def create_topic(admin: TopicAdmin, topic: NewTopic) -> None:
    with suppress(TopicAlreadyExists):  # an earlier attempt succeeded, but its response was lost
        await admin.create(topic)


async def until_drained(scenario: ClusterScenario, topic: str, name: str, workers: Sequence[Worker]) -> None:
    """Make the workers catch up until the subscription is empty, then stop them."""
    for worker in workers:
        worker.catches_up, worker.counts = True, (30,)
    admin, places = SubscriptionAdmin(scenario.watcher.cluster), scenario.cluster.places
    while True:
        try:
            described = {one.target.partition: one.backlog for one in await admin.describe(name, [topic])}
            left, partitions = sum(described.values()), {index for one, index, _ in places() if one == topic}
            scenario.missing = f"{left} messages of {topic} are not settled in {sorted(described)} of {partitions}"
            if not left and described.keys() == partitions:
                break
        except HeadraceError as error:
            scenario.missing = f"the backlog of {topic} cannot be had: {error}"
        await asyncio.sleep(POLL_SECONDS)
    for worker in workers:
        worker.is_done = True
    await scenario.until_none(lambda: scenario.unfinished(*workers))


def open_transactions(cluster: SimCluster, topic: str) -> list[str]:
    """Return the partitions whose end read_committed consumers cannot reach."""
    found = []
    for name, index, place in cluster.places():
        partition = cluster.replica(place.leader, name, index) if place.leader in cluster.brokers else None
        if name == topic and (partition is None or partition.last_stable_offset < partition.log.end_offset):
            found.append(f"{name}-{index} has an open transaction")
    return found


# Content of the logs


class Stored(NamedTuple):
    """A record in the leader's log; its transaction may have been aborted."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class StoredPartition(NamedTuple):
    start_offset: int
    end_offset: int
    size_bytes: int
    records: list[Stored]


def stored(cluster: SimCluster, topic: str) -> dict[int, StoredPartition]:
    """Read the records below the high watermark of each partition from its leader's disk."""
    found = {}
    for name, index, place in cluster.places():
        if name != topic:
            continue
        partition = cluster.replica(place.leader, topic, index)
        assert partition is not None, f"{topic}-{index} has no leader"
        start, end = partition.log.start_offset, partition.high_watermark
        records = []
        for _, batch in cluster.replicas(topic, index)[place.leader].batches:
            header = parse_header(batch)
            if not header.is_control:
                records += [
                    Stored(index, one.offset, one.key, one.value, tuple(one.headers), one.timestamp_ms)
                    for one in read_records(memoryview(batch), header, RECORD_BYTES_MAX)
                    if start <= one.offset < end
                ]
        found[index] = StoredPartition(start, end, partition.log.size_bytes, records)
    return found


def record_final_logs(history: History, found: Mapping[int, StoredPartition]) -> None:
    for index, partition in found.items():
        history.final[index] = [(one.offset, one.value or b"") for one in partition.records]
