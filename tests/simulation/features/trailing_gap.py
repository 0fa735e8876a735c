"""A lease reads a gap that reaches to the last stable offset: it must pass the gap, not loop (I34).

A worker repeats these steps on a topic with acked retention and small segments:

1. It publishes messages without a producer id. The cleaner keeps the last batch of a producer id, so there would be no
   gap at the end of a segment otherwise.
2. It acks all but the first message, which it nacks with a long delay.
3. It begins a transaction whose first batch does not fit into the segment, and leaves it open: the last stable offset
   is then the base of a new segment.
4. It waits until the cleaner has removed everything after the waiting message from the closed segment.
5. It moves the leadership of the partition, or changes the subscription, so that the messages are read again.
6. It leases, ends the transaction, and starts again.

The subscription uses read_committed with key order, a filter or priorities: only these read the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.simulation.clients import Client
from tests.simulation.features.feature import (
    LONG_MAX,
    WITHOUT_GAPS,
    Feature,
    open_transactions,
    record_final_logs,
    stored,
    until_drained,
)
from tests.simulation.features.plain_produce import ALL, produce
from tests.simulation.features.queue import FILTERED, KEYED, ORDERS, PRIORITIES
from tests.simulation.features.queue_clients import LEASE_SECONDS, QueueLog, QueueWorker
from tests.simulation.features.queue_rules import come_back, delivered_unwanted, not_settled

from headrace.broker.partition import Partition
from headrace.client.admin.cluster_admin import ClusterAdmin
from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import ProducerSettings
from headrace.client.queues.subscription import Subscription
from headrace.client.transactions.transactional_producer import TransactionalProducer, TransactionSettings
from headrace.model.errors import HeadraceError
from headrace.testkit.anomalies import Anomaly
from headrace.testkit.cluster import SimCluster
from headrace.testkit.history import History
from headrace.wire.batches.batch import BatchRecord

if TYPE_CHECKING:
    from tests.simulation.cluster_scenario import ClusterScenario

TOPIC, NAME = "tickets", "clerks"
TARGET = TopicPartition(TOPIC, 0)
WANTED = (("kind", b"wanted"),)
SEGMENT_BYTES = 2000
COUNTS = (4, 8, 12)
DELAYS_SECONDS = (4.0, 10.0, 15.0)
TRANSACTION_SECONDS = 8.0
ROUNDS_MAX = 3
"""The time limit after the faults; the situation is then not created."""
STEP_SECONDS = 2.0
ROUND_SECONDS = 15.0
LEASES_SECONDS = (0.5, 1.5)
POLL_SECONDS = 0.05
SENDING = ProducerSettings(delivery_timeout_seconds=4.0, topic_wait_seconds=4.0)


class GapWorker(QueueWorker):
    """Creates a gap that reaches to the last stable offset, until it must catch up; then it works as other workers."""

    sim: SimCluster
    rounds = gaps = 0

    async def work(self) -> None:
        async with Subscription(self.cluster, TOPIC, NAME) as subscription:
            while not self.catches_up:
                self.rounds += 1
                try:
                    async with asyncio.timeout(ROUND_SECONDS):
                        await self._make_gap(subscription)
                except* (HeadraceError, TimeoutError):
                    pass  # because of a fault: start the next round
                await self.think(0.1)
        await super().work()

    async def _make_gap(self, subscription: Subscription) -> None:
        producer = TransactionalProducer(
            self.cluster, f"{self.name}-{self.rounds}", TransactionSettings(TRANSACTION_SECONDS, SENDING)
        )
        try:
            await producer.start()
            first, last = await self._publish()
            await self._settle_but(subscription, first, last)
            await producer.begin()
            await self._until_gap(first + 1, await self._send_large(producer))
            await self._force_new_read()
            await self._lease_for_a_while(subscription)
            await self._end(producer)
        finally:
            await producer._drop_producer()

    async def _publish(self) -> tuple[int, int]:
        """Return the offsets of the first and the last message. Only the first has its own key, so that it does not
        hold up the others."""
        first = await self._publish_one(b"waits%d" % self.rounds, 0)
        async with asyncio.TaskGroup() as under_way:
            numbers = range(1, self.random.choice(COUNTS))
            others = [under_way.create_task(self._publish_one(b"key%d" % number, number)) for number in numbers]
        return first, max(task.result() for task in others)

    async def _publish_one(self, key: bytes, number: int) -> int:
        value = f"{self.name}-{self.rounds}-{number}".encode() + b"." * 50
        send = self.history.begin_send(self.name, 0, value)
        record = BatchRecord(key, value, WANTED, self.cluster.clock.now_ms())
        offset = await produce(self.cluster, TOPIC, 0, [record], ALL)
        self.history.end_send(send, offset)
        return offset

    async def _settle_but(self, subscription: Subscription, first: int, last: int) -> None:
        """Ack all messages up to the last one, but nack the first with a long delay."""
        left = set(range(first, last + 1))
        while left and not self.catches_up:
            messages = await subscription.lease(30, wait_seconds=0.5)
            async with asyncio.TaskGroup() as under_way:
                for message in messages:
                    self.receive(message)
                    left.discard(message.receipt.id.offset)
                    if message.receipt.id.offset == first:
                        seconds = self.random.choice(DELAYS_SECONDS)
                        under_way.create_task(subscription.nack([message], delay_seconds=seconds))
                    else:
                        under_way.create_task(self.ack(message.receipt))

    async def _until_gap(self, offset: int, end_offset: int) -> None:
        """Wait for the gap, or until the time limit, because a fault may prevent it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STEP_SECONDS):
                while not self._is_gap(offset, end_offset):
                    await asyncio.sleep(POLL_SECONDS)
                self.gaps += 1

    async def _send_large(self, producer: TransactionalProducer) -> int:
        value = f"{self.name}-{self.rounds}-large".encode() + b"." * (SEGMENT_BYTES - 150)
        self.large = self.history.begin_send(self.name, 0, value)
        delivery = await producer.submit(TOPIC, value, partition=0, key=b"large", headers=WANTED)
        return (await delivery).offset

    def _is_gap(self, offset: int, end_offset: int) -> bool:
        """Return whether no replica has records between these offsets, and the second one begins the active segment."""
        held = [self.sim.replica(node_id, TOPIC, 0) for node_id in self.sim.brokers]
        return all(_ends_with_gap(one, offset, end_offset) for one in held if one is not None)

    async def _force_new_read(self) -> None:
        if self.random.random() < 0.3:
            backoff_ms = str(self.random.randrange(1000))
            await SubscriptionAdmin(self.cluster).configure(TOPIC, NAME, {"headrace.retry.backoff.ms": backoff_ms})
            return
        admin, place = ClusterAdmin(self.cluster), await self.cluster.partition(TOPIC, 0)
        others = [node_id for node_id in place.replicas if node_id != place.leader]
        await admin.move({TARGET: [*self.random.sample(others, len(others)), place.leader]})
        await admin.prefer([TARGET])
        self.cluster.invalidate_metadata()

    async def _lease_for_a_while(self, subscription: Subscription) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.random.choice(LEASES_SECONDS)):
                while not self.catches_up:
                    await self._settle_all(subscription, await subscription.lease(30, wait_seconds=0.5))

    async def _end(self, producer: TransactionalProducer) -> None:
        """End the transaction, or leave it to the coordinator, which aborts it after its timeout."""
        fate = self.random.random()
        if fate < 0.2:
            await producer.abort()
            self.history.aborted.add(self.large.value)
        elif fate < 0.9:
            await producer.commit()


def _ends_with_gap(partition: Partition, offset: int, end_offset: int) -> bool:
    segments = partition.log.segments
    return len(segments) > 1 and segments[-1].base_offset == end_offset and segments[-2].ends_before(offset)


class TrailingGap(Feature):
    needs_broker_clocks = True
    settings = {"log.cleaner.backoff.ms": "200"}

    def __init__(self, scenario: ClusterScenario) -> None:
        super().__init__(scenario)
        self.replicas = self.random.choice((2, 3))
        self.order = self.random.choice((KEYED, FILTERED, PRIORITIES))
        self.configs = {
            "retention.ms": "-1",
            "retention.mode": "acked",
            "segment.bytes": str(SEGMENT_BYTES),
            "message.timestamp.after.max.ms": LONG_MAX,
            "min.insync.replicas": str(self.random.choice((1, 2))),
        }
        self.subscription = {
            "share.delivery.count.limit": "1000",
            "headrace.retry.backoff.ms": "0",
            "share.record.lock.duration.ms": f"{LEASE_SECONDS * 1000:.0f}",
            "share.isolation.level": "read_committed",
            **ORDERS[self.order],
        }
        self.history, self.log = History(has_gaps=True), QueueLog()

    def attach(self) -> None:
        worker = self.scenario.create_client(GapWorker, "clerk", self.history)
        worker.topic, worker.subscription, worker.configs, worker.log = TOPIC, NAME, self.subscription, self.log
        worker.sim = self.scenario.cluster
        self.worker = worker

    @property
    def clients(self) -> list[Client]:
        return [self.worker]

    async def prepare(self, admin: TopicAdmin) -> None:
        await self.create_known_topic(admin, NewTopic(TOPIC, 1, self.replicas, self.configs))
        subscriptions = SubscriptionAdmin(self.scenario.watcher.cluster)
        await subscriptions.create(TOPIC, NAME, Position(START), self.subscription)

    async def recover(self, healed: Mapping[int, int]) -> None:
        rounds, gaps = self.worker.rounds, self.worker.gaps
        await self.scenario.until_none(
            lambda: ["no gap"] if self.worker.gaps == gaps and self.worker.rounds < rounds + ROUNDS_MAX else []
        )
        self.worker.catches_up = True
        await self.scenario.until_none(lambda: open_transactions(self.scenario.cluster, TOPIC))
        await until_drained(self.scenario, TOPIC, NAME, [self.worker])

    def audit(self) -> None:
        record_final_logs(self.history, stored(self.scenario.cluster, TOPIC))

    def anomalies(self) -> Iterator[Anomaly]:
        for rule in WITHOUT_GAPS:
            yield from rule(self.history)
        yield from come_back([self.worker])
        yield from not_settled(self.history, self.log, (), lambda _: True)
        yield from delivered_unwanted(self.log, self.history, lambda _: True)
