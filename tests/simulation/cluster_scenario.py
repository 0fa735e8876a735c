"""The simulation of a cluster from one seed: clients work while brokers, disks, network and registry fail.

- After healing, the cluster must recover within a minute of virtual time: every partition has a leader and all replicas
  in sync, and all producers, groups and transactions progress.
- Then the logs of the leaders and of every replica are read, and the histories of the clients are checked.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from tests.simulation.clients import GROUP, PARTITIONS, TOPIC, Auditor, Client, Member, Reader, Watcher
from tests.simulation.cluster_clients import (
    COPIES,
    REPLICAS,
    CommittedReader,
    CopiesAuditor,
    OffsetLister,
    Operator,
    SlowWriter,
)
from tests.simulation.cluster_faults import Faults
from tests.simulation.features.feature import Feature
from tests.simulation.pipeliner import Pipeliner
from tests.simulation.topic_copier import COPIER, TopicCopier, original

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.groups.offsets import END, committed, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError
from headrace.testkit.anomalies import Anomaly, find_copy_anomalies, find_replicated_anomalies
from headrace.testkit.cluster import SimCluster
from headrace.testkit.history import History
from headrace.testkit.world import World

ClientT = TypeVar("ClientT", bound=Client)

FAULTS_SECONDS = (3.0, 10.0)
RECOVERY_SECONDS = 60.0  # the time limit of the recovery, from the end of the faults
POLL_SECONDS = 0.25
DISK_DELAYS = ((0.00005, 0.002), (0.001, 0.02), (0.005, 0.1))
TOPIC_CONFIGS = {"min.insync.replicas": "2"}
SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "leader.imbalance.check.interval.seconds": "5",
    "offsets.topic.num.partitions": "1",
    "replica.fetch.wait.max.ms": "900",  # an idle cluster mostly fetches
    "replica.lag.time.max.ms": "2000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.state.log.num.partitions": "1",
}
TINY_SETTINGS = {
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "offsets.topic.segment.bytes": "2000",
    "replica.fetch.max.bytes": "300",
    "replica.fetch.wait.max.ms": "100",
    "transaction.state.log.segment.bytes": "2000",
}
TINY_TOPIC_CONFIGS = {"segment.bytes": "3000", "index.interval.bytes": "300"}


class NotRecovered(AssertionError):
    """A client or a partition has not recovered in time after the last fault."""


class ClusterScenario:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(f"cluster {seed}")
        self.world = World(seed)
        self.orders, self.copies = History(), History(has_gaps=True)
        settings = dict(SETTINGS)
        self.topic_configs = dict(TOPIC_CONFIGS)
        # The settings vary: some bugs occur only with tiny segments or fetches, others only without.
        settings |= {name: value for name, value in TINY_SETTINGS.items() if self.random.random() < 0.25}
        if self.random.random() < 0.5:
            self.topic_configs |= TINY_TOPIC_CONFIGS
        self.features = self.draw_features()
        for feature in self.features:
            settings |= feature.settings
            self.topic_configs |= feature.topic_configs
        self.world.network.retry_seconds = self.random.choice((0.0, 0.5, 8.0))
        self.cluster = SimCluster(self.world, self.random.choice((3, 3, 3, 3, 4, 5)), settings)
        for broker in self.cluster.brokers.values():
            broker.host.disk.delay_seconds = self.random.choice(DISK_DELAYS)
        self.watcher = self.create_client(Watcher, "watcher")
        self.writers = self.draw_clients(SlowWriter, "writer", (1, 1, 2)) + self.draw_clients(
            Pipeliner, "pipeliner", (0, 1)
        )
        self.members = self.draw_clients(Member, "member", (0, 1, 2))
        self.followers = self.draw_clients(TopicCopier, "copier", (0, 1, 1), self.copies)
        for copier in self.followers:
            copier.uses_v2 = self.random.random() < 0.5
        self.operators = self.draw_clients(Operator, "operator", (0, 1))
        for operator in self.operators:
            operator.brokers = list(self.cluster.brokers)
        self.clients: list[Client] = [
            *self.writers,
            *self.members,
            *self.followers,
            *self.operators,
            *self.draw_clients(Reader, "reader", (0, 1)),
            *self.draw_clients(CommittedReader, "committed-reader", (0, min(1, len(self.followers))), self.copies),
            *self.draw_clients(OffsetLister, "surveyor", (0, 1)),
            *([self.watcher] if self.members else []),
        ]
        self.missing = ""
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def run(self) -> list[Anomaly]:
        """Run the seed; return the anomalies."""
        gc.disable()  # collection takes a quarter of the time, and frees little before the world is closed
        try:
            self.world.run(self._main())
        finally:
            self.world.close()
            gc.enable()
        found = find_replicated_anomalies(self.orders)
        found += find_copy_anomalies(self.orders, self.copies, original) if self.followers else []
        return found + [anomaly for feature in self.features for anomaly in feature.anomalies()]

    def draw_features(self) -> list[Feature]:
        """Return the features that this seed adds to every scenario's clients and faults."""
        return []

    @property
    def recovery_seconds(self) -> float:
        return RECOVERY_SECONDS + sum(feature.recovery_seconds for feature in self.features)

    @property
    def digest(self) -> str:
        return f"{self.world.digest} {self.orders.digest} {self.copies.digest}"

    async def _main(self) -> None:
        await self.cluster.start_all()
        await self.until_none(self.cluster.unknown_brokers)
        admin = TopicAdmin(self.writers[0].cluster)
        for name in (TOPIC, COPIES):
            await admin.create(NewTopic(name, PARTITIONS, REPLICAS, self.topic_configs))
        # A consumer believes the broker that it asks, and that broker's view of the registry may lag.
        await self.until_none(lambda: self.cluster.unknown_topics((TOPIC, COPIES)))
        for feature in self.features:
            await feature.prepare(admin)
        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                self.tasks[client.name] = group.create_task(client.run(), name=client.name)
            await self._fail()
            alarm = self.world.loop.call_later(self.recovery_seconds, self._give_up)
            await self._recover()
            for client in self.clients:
                client.is_done = True
        await self.until_none(self.cluster.diverged_partitions)
        alarm.cancel()
        self.cluster.check()
        for feature in self.features:
            feature.audit()
        await self.create_client(Auditor, "auditor").run()
        await self.create_client(CopiesAuditor, "copies-auditor", self.copies).run()
        for name, history in ((TOPIC, self.orders), (COPIES, self.copies)):
            history.replicas = {index: self.cluster.replicas(name, index) for index in range(PARTITIONS)}

    async def _fail(self) -> None:
        names = [client.name for client in self.clients]
        count = self.random.choice((0, 1, 1, 1, 2, 2))
        if any(feature.disables_faults for feature in self.features):
            count = 0
        faults = Faults(
            self.world,
            self.cluster,
            names,
            self.random,
            may_replace_disk=count == 1 and all(feature.may_replace_disk for feature in self.features),
            extra=[fault for feature in self.features for fault in feature.faults()],
        )
        calm_seconds = self.random.choice((0.05, 0.2, 0.6))
        streams = [asyncio.create_task(faults.run(calm_seconds)) for _ in range(count)]
        await asyncio.sleep(self.random.uniform(*FAULTS_SECONDS))
        for stream in streams:
            stream.cancel()
        if streams:
            await asyncio.wait(streams)
            for stream in streams:
                if not stream.cancelled():
                    stream.result()

    # Recovery

    def _give_up(self) -> None:
        self.world.loop.halt(NotRecovered(f"after {self.recovery_seconds} s: {self.missing}"))

    async def _recover(self) -> None:
        """After healing: every writer succeeds, then the groups read to the end."""
        self.missing = "not all brokers are up"
        await self.cluster.heal()
        healed = self.orders.now
        healed_in = {id(client.history): client.history.now for client in self.clients}
        for operator in self.operators:
            operator.is_done = True
        for copier in self.followers:
            copier.catches_up = True
        await self.until_none(lambda: self._silent_since(healed))
        for writer in self.writers:
            writer.is_done = True
        await self.until_none(lambda: self.unfinished(*self.writers, *self.operators))
        for feature in self.features:
            await feature.recover(healed_in)
        await self.until_none(self.cluster.unhealthy_partitions)
        while not await self._have_caught_up():
            await asyncio.sleep(POLL_SECONDS)

    async def until_none(self, missing: Callable[[], list[str]]) -> None:
        while found := missing():
            self.missing = "; ".join(found)
            await asyncio.sleep(POLL_SECONDS)

    def _silent_since(self, moment: int) -> list[str]:
        written = {send.client for send in self.orders.sends if send.is_ok and send.began > moment}
        return [
            f"{writer.name} has no acknowledged record since the healing"
            for writer in self.writers
            if writer.name not in written
        ]

    def unfinished(self, *clients: Client) -> list[str]:
        return [f"{client.name} is not done" for client in clients if not self.tasks[client.name].done()]

    async def _have_caught_up(self) -> bool:
        """Return whether the groups have committed the end of every partition."""
        targets = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        groups = [GROUP] * bool(self.members) + [COPIER] * bool(self.followers)
        try:
            ends = await find_offsets(self.watcher.cluster, dict.fromkeys(targets, END))
            found = [await committed(self.watcher.cluster, group, targets) for group in groups]
        except HeadraceError as error:
            self.missing = f"reading the groups' offsets failed: {error}"
            return False
        stands = [{target: commit.offset for target, commit in offsets.items() if commit.offset} for offsets in found]
        wanted = {target: at.offset for target, at in ends.items() if at.offset}
        self.missing = f"the groups have not caught up: {stands} instead of {wanted}"
        return all(stand == wanted for stand in stands)

    def latest_clock_ms(self) -> int:
        """Return the time of the fastest clock among the brokers."""
        return max(broker.host.clock.now_ms() for broker in self.cluster.brokers.values())

    def draw_clients(
        self, kind: type[ClientT], name: str, counts: Sequence[int], history: History | None = None
    ) -> list[ClientT]:
        """Create as many of these clients as the seed draws."""
        return [self.create_client(kind, f"{name}{number}", history) for number in range(self.random.choice(counts))]

    def create_client(self, kind: type[ClientT], name: str, history: History | None = None) -> ClientT:
        return kind(self.world.host(name), self.cluster.bootstrap, history or self.orders, self.seed)
