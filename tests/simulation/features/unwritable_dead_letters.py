"""Dead letters cannot be written while all brokers are restarted: no message may be lost (I19, I33).

- The dead-letter topic rejects all copies until the faults end: they are too large for it, or one of its replicas is
  down and it requires all. Meanwhile workers reject messages, or let them exhaust their deliveries.
- Then the leader writes with acks=1 records that its follower does not have, and both are restarted. The acks log,
  which is short, is committed long before the topic: until then, the new leader cannot distinguish a message that is
  gone from one that it may not read yet.
- Every message is acked or a dead letter, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
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
    TopicWriter,
    record_final_logs,
    stored,
    until_drained,
)
from tests.simulation.features.plain_produce import LEADER, produce
from tests.simulation.features.queue_clients import LEASE_SECONDS, POISON, QueueLog, QueueWorker
from tests.simulation.features.queue_rules import come_back, dead_places, dead_twice, not_dead, not_settled

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.model.errors import HeadraceError
from headrace.model.names import dead_letter_topic
from headrace.model.registry_records import PartitionRecord
from headrace.testkit.anomalies import Anomaly
from headrace.testkit.broker import SimBroker
from headrace.testkit.history import History
from headrace.wire.batches.batch import BatchRecord

if TYPE_CHECKING:
    from tests.simulation.cluster_scenario import ClusterScenario

TOPIC, NAME = "parcels", "sorters"
DEAD_LETTERS = dead_letter_topic(TOPIC)
TOO_LARGE, TOO_FEW_REPLICAS = "too large", "too few replicas"
ENOUGH_BYTES = {"max.message.bytes": "1000000"}
POISON_CHANCE = 0.6
WEIGHT = 12
"""The weight of the fault in the list of faults."""
BURST_BATCHES, BURST_BYTES = 40, 1000
LINK_BYTES_PER_SECOND = 20_000.0
WAIT_SECONDS = 2.0
POLL_SECONDS = 0.05


class BurstWriter(Client):
    """Writes with acks=1, on request, records that the leader has and its follower lacks."""

    settings = IMPATIENT
    number = 0

    async def work(self) -> None:
        while not self.is_done:
            await self.think(0.5)

    async def write_burst(self) -> None:
        async with asyncio.TaskGroup() as under_way:
            for _ in range(BURST_BATCHES):
                self.number += 1
                value = f"{self.name}-{self.number}".encode() + b"." * BURST_BYTES
                self.history.begin_send(self.name, 0, value)
                under_way.create_task(self._write(BatchRecord(value=value, timestamp_ms=self.cluster.clock.now_ms())))

    async def _write(self, record: BatchRecord) -> None:
        with suppress(HeadraceError):
            await produce(self.cluster, TOPIC, 0, [record], LEADER)


class UnwritableDeadLetters(Feature):
    needs_broker_clocks = True
    may_replace_disk = False  # the feature stops brokers itself
    settings = {"log.cleaner.backoff.ms": "400", "replica.fetch.max.bytes": "1000"}

    def __init__(self, scenario: ClusterScenario) -> None:
        super().__init__(scenario)
        self.why = self.random.choice((TOO_LARGE, TOO_FEW_REPLICAS))
        self.configs = {
            "retention.ms": "-1",
            "message.timestamp.after.max.ms": LONG_MAX,
            "min.insync.replicas": "2",
        }
        if self.random.random() < 0.5:
            self.configs |= {"retention.mode": "acked", "segment.bytes": str(self.random.choice((600, 2000)))}
        self.subscription = {
            "share.delivery.count.limit": str(self.random.choice((2, 3))),
            "share.record.lock.duration.ms": f"{LEASE_SECONDS * 1000:.0f}",
            "headrace.retry.backoff.ms": "0",
        }
        self.history, self.log = History(has_gaps=True), QueueLog()

    def attach(self) -> None:
        client = self.scenario.create_client
        writer = client(TopicWriter, "parcel-writer", self.history)
        writer.topic, writer.draft, writer.pause_seconds = TOPIC, self._draft, 0.2
        self.writer, self.writers = writer, [writer]
        self.burst_writer = client(BurstWriter, "burst-writer", self.history)
        self.workers = self.scenario.draw_clients(QueueWorker, "sorter", (1, 2), self.history)
        for worker in self.workers:
            worker.topic, worker.subscription, worker.configs, worker.log = TOPIC, NAME, self.subscription, self.log
        self.others = [self.burst_writer]

    def _draft(self, writer: TopicWriter, number: int) -> Draft:
        prefix = POISON if self.random.random() < POISON_CHANCE else b"job"
        return Draft(prefix + f"{writer.name}-{number}".encode(), 0, timestamp_ms=writer.cluster.clock.now_ms())

    async def prepare(self, admin: TopicAdmin) -> None:
        await self.create_known_topic(admin, NewTopic(TOPIC, 1, 2, self.configs))
        brokers = len(self.scenario.cluster.brokers)
        configs = {
            "dedup.window.ms": str(DAY_MS),
            "message.timestamp.after.max.ms": LONG_MAX,
            "min.insync.replicas": str(brokers if self.why == TOO_FEW_REPLICAS else 2),
            "retention.ms": "-1",
            **({"max.message.bytes": "10"} if self.why == TOO_LARGE else {}),
        }
        replicas = brokers if self.why == TOO_FEW_REPLICAS else 2
        await self.create_known_topic(admin, NewTopic(DEAD_LETTERS, 1, replicas, configs))
        subscriptions = SubscriptionAdmin(self.scenario.watcher.cluster)
        await subscriptions.create(TOPIC, NAME, Position(START), self.subscription)

    # Faults

    def faults(self) -> list[Fault]:
        return [self._restart_before_copies] * WEIGHT

    async def _restart_before_copies(self) -> None:
        """Let messages exhaust their deliveries while no dead letter can be written, and restart all brokers."""
        cluster, network = self.scenario.cluster, self.scenario.world.network
        record = self._place()
        if record.leader not in cluster.brokers or len(record.isr) < len(record.replicas):
            return
        leader = cluster.brokers[record.leader]
        (follower,) = [cluster.brokers[node_id] for node_id in record.replicas if node_id != record.leader]
        others = [broker for broker in cluster.brokers.values() if broker not in (leader, follower)]
        if self.why == TOO_FEW_REPLICAS:
            for broker in others:
                self._fail(broker)
        rejected = len(self.log.rejected)
        await self._until(lambda: len(self.log.rejected) > rejected)
        self._fail(follower)
        await self._until(lambda: follower.node_id not in self._place().isr)
        await self.burst_writer.write_burst()
        self._fail(leader)
        if self.random.random() < 0.5:
            for broker in others[self.random.randint(0, 1) :]:
                self._fail(broker)
        network.slow(leader.host.name, follower.host.name, LINK_BYTES_PER_SECOND)
        await self._start(leader)
        await self._until(lambda: self._place().leader == leader.node_id)
        await self._start(follower)
        await asyncio.sleep(self.random.choice((0.5, 2.0, 3.0)))
        network.speed_up()
        for broker in others:
            await self._start(broker)

    def _place(self) -> PartitionRecord:
        return next(record for name, _, record in self.scenario.cluster.places() if name == TOPIC)

    def _fail(self, broker: SimBroker) -> None:
        """Kill the broker and expire its session at once."""
        self.scenario.cluster.expire(broker)
        broker.kill()

    async def _start(self, broker: SimBroker) -> None:
        if broker.is_down:  # unless another fault has started it meanwhile
            await broker.start()

    async def _until(self, is_met: Callable[[], bool]) -> None:
        """Wait for the condition, or until the time limit, because other faults may prevent it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                while not is_met():
                    await asyncio.sleep(POLL_SECONDS)

    # Checks

    async def recover(self, healed: Mapping[int, int]) -> None:
        if self.why == TOO_LARGE:
            await TopicAdmin(self.writer.cluster).alter_configs(DEAD_LETTERS, set_to=ENOUGH_BYTES)
        workers, self.workers = self.workers, []
        await super().recover(healed)
        self.workers = workers
        await until_drained(self.scenario, TOPIC, NAME, workers)

    @property
    def clients(self) -> list[Client]:
        return [*super().clients, *self.workers]

    def audit(self) -> None:
        cluster = self.scenario.cluster
        record_final_logs(self.history, stored(cluster, TOPIC))
        self.dead = [one for part in stored(cluster, DEAD_LETTERS).values() for one in part.records]

    def anomalies(self) -> Iterator[Anomaly]:
        for rule in WITHOUT_GAPS:
            yield from rule(self.history)
        dead = dead_places(self.dead)
        yield from come_back(self.workers)
        yield from not_settled(self.history, self.log, dead, lambda _: True)
        yield from not_dead(self.log, dead)
        yield from dead_twice(self.dead)
