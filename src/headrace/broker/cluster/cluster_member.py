"""The participation of this broker in the cluster: membership, replicas, in-sync replicas, and the controller.

A single broker is a cluster of one and runs the same code. A broker joins when its port is bound, because it registers
the address. It accepts connections when its own metadata contains this broker and a controller, and is ready when it
leads the partitions that it should lead. The election of a controller requires only the registry, so no broker waits
for the port of another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

from headrace.broker.cluster.membership import BrokerRegistration, BrokerStart
from headrace.broker.cluster.peers import Peers
from headrace.broker.cluster.registry_rollback import KnownLeaders, set_aside_foreign_logs
from headrace.broker.controller.controller import Controller
from headrace.broker.replication.isr_updater import IsrUpdater, leave_isr
from headrace.broker.replication.replica_fetcher import FollowerFetchers
from headrace.broker.replication.replicas import Replicas
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import HeadraceError
from headrace.model.registry_records import NO_EPOCH, NO_LEADER, PartitionRecord
from headrace.registry.interface import Registry, RegistryUnavailable
from headrace.registry.topics import TopicRecords
from headrace.runtime.clock import Clock
from headrace.runtime.entropy import Entropy
from headrace.runtime.network import Network
from headrace.runtime.tasks import Supervisor
from headrace.storage.store.log_store import LogStore

log = logging.getLogger(__name__)

_REGISTERED_SECONDS = 60.0
_READY_SECONDS = 10.0
_TRANSFER_SECONDS = 10.0
_LEADERSHIP_SECONDS = 5.0
_POLL_SECONDS = 0.05


class ClusterMember:
    def __init__(
        self,
        catalogue: Catalogue,
        store: LogStore,
        registry: Registry,
        network: Network,
        clock: Clock,
        entropy: Entropy,
        supervisor: Supervisor,
        node_id: int,
        start: BrokerStart,
        known_leaders: KnownLeaders,
    ) -> None:
        self.membership = BrokerRegistration(registry, clock, node_id, start, catalogue.mirror.open)
        self.peers = Peers(network, node_id, self._address_of)
        self._catalogue = catalogue
        self._store = store
        self._registry = registry
        self._supervisor = supervisor
        self._clock = clock
        self._node_id = node_id
        self._start = start
        self._known_leaders = known_leaders
        self._follower_fetchers = FollowerFetchers(
            self.peers, store.flusher, lambda: catalogue.config, clock, supervisor.spawn, node_id, start.epoch
        )
        topics = TopicRecords(registry)
        self._replicas = Replicas(
            catalogue, store, self._follower_fetchers, clock, entropy, node_id, start.epoch, topics, known_leaders
        )
        self.controller = Controller(catalogue, registry, self.membership, clock, node_id)
        self._isr_updater = IsrUpdater(catalogue, registry, self.membership, clock, node_id)
        self._changed = asyncio.Event()
        catalogue.settled = self._replicas.settled
        catalogue.wait_for_leaders = self._wait_for_leaders
        catalogue.on_brokers_change.append(self._changed.set)
        catalogue.on_partition_change.append(lambda _topic, _index: self._changed.set())
        catalogue.on_leadership_gained.append(lambda _partition: self._changed.set())

    async def open(self) -> None:
        """Read the state of the cluster, open the logs, and declare possible losses. No other broker relies on this one
        yet."""
        await self.membership.open()
        await self._catalogue.mirror.open()
        await self._known_leaders.load()
        await self._replicas.open_logs()
        await set_aside_foreign_logs(self._catalogue, self._store, self._registry, self._known_leaders, self._node_id)
        await self._replicas.begin()
        await self._leave_isr_after_loss()
        self._supervisor.spawn(self._catalogue.mirror.run(), "mirror of the registry")
        self._supervisor.spawn(self._replicas.run(), "replicas")
        self._supervisor.spawn(self._replicas.write_topic_records(), "topic files")

    async def join(self, host: str, port: int, rack: str | None) -> None:
        """Register this broker. Return when its metadata contains this broker and a controller: otherwise clients would
        get metadata without brokers, and topic creations would fail permanently."""
        await self.membership.join(host, port, rack)
        self._supervisor.spawn(self.membership.run(), "membership")
        self._supervisor.spawn(self.controller.run(), "controller")
        self._supervisor.spawn(self._isr_updater.run(), "in-sync sets")
        if not await self._until(self._is_registered, _REGISTERED_SECONDS):
            raise RegistryUnavailable(
                f"broker {self._node_id} found no controller within {_REGISTERED_SECONDS:g} s; check the registry"
            )

    async def wait_for_leaders(self) -> None:
        """Wait until this broker leads the partitions that it should lead. It already accepts connections meanwhile."""
        if not await self._until(self._is_ready, _READY_SECONDS):
            log.warning("broker starts serving while some partitions have no leader")

    async def transfer_leadership(self) -> None:
        """Hand over the leaderships of this broker to other brokers, as far as possible."""
        if not any(node_id != self._node_id for node_id in self._catalogue.nodes):
            return
        await self.membership.begin_controlled_shutdown()
        if not await self._until(self._has_transferred_leadership, _TRANSFER_SECONDS):
            log.warning("shutting down before other brokers took over all leaderships")

    async def leave(self) -> None:
        self._catalogue.mirror.close()
        self.peers.close()
        await self.membership.leave()

    # Possible losses

    async def _leave_isr_after_loss(self) -> None:
        """Remove this broker from the in-sync replicas of partitions whose records it may have lost, before it
        registers."""
        for topic, index, record in list(self._held()):
            if len(record.replicas) == 1 or not self._may_have_lost(topic, index):
                continue
            if await leave_isr(self._registry, topic, index, self._node_id) is not None:
                log.warning(
                    "log may lack acknowledged records; replicating it again partition=%s-%d", topic.name, index
                )

    def _may_have_lost(self, topic: Topic, index: int) -> bool:
        # A log that was missing in the data folder has been created empty, and is quarantined: the flushed offset of
        # the lost log is stored outside of its folder, and the empty log is shorter than that.
        partition = topic.replicas.get(index)
        if not self._start.has_latest_data or partition is None or partition.log.quarantined is not None:
            return True
        # Other topics are flushed before records are acknowledged, so an unclean shutdown does not matter.
        return (
            self._store.broker_epoch != self._start.previous_broker_epoch
            and self._replicas.may_have_acknowledged_from_memory(topic)
        )

    def _held(self) -> Iterator[tuple[Topic, int, PartitionRecord]]:
        """Yield the partitions with a replica on this broker."""
        for topic in self._catalogue:
            for index, record in topic.partition_records.items():
                if self._node_id in record.replicas:
                    yield topic, index, record

    # Waits

    def _is_registered(self) -> bool:
        """Whether the registration of this start (not that of an earlier one) and a controller are known."""
        nodes, controller = self._catalogue.nodes, self._catalogue.controller
        me = nodes.get(self._node_id)
        return (
            me is not None and me.epoch == self._start.epoch and controller is not None and controller.node_id in nodes
        )

    def _is_ready(self) -> bool:
        """Whether there is a controller, and each partition has a leader or cannot get one by this broker."""
        return self._catalogue.controller is not None and all(
            index in topic.led
            if record.leader == self._node_id
            else record.leader != NO_LEADER or self._node_id not in record.isr + record.elr
            for topic, index, record in self._held()
        )

    def _has_transferred_leadership(self) -> bool:
        others = self._catalogue.usable_brokers().keys() - {self._node_id}  # draining brokers take over nothing
        return not any(
            others.intersection(record.isr)
            for topic in self._catalogue
            for index in topic.led
            if (record := topic.partition_records.get(index)) is not None
        )

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for the condition; return whether it came true in time."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def _wait_for_leaders(self, topic: Topic) -> None:
        """Wait, at most some seconds, until all leaders of a topic accept writes, including those on other brokers."""
        deadline = self._clock.monotonic() + _LEADERSHIP_SECONDS
        elsewhere: dict[int, dict[int, int]] = {}
        for index, record in topic.partition_records.items():
            if index not in topic.led and record.leader not in (self._node_id, NO_LEADER):
                elsewhere.setdefault(record.leader, {})[index] = NO_EPOCH
        for node_id, partitions in elsewhere.items():
            while self._clock.monotonic() < deadline:
                with suppress(HeadraceError):
                    responses = await self.peers.log_start_offsets(node_id, topic.name, partitions, _LEADERSHIP_SECONDS)
                    if not any(response.error_code for response in responses):
                        break
                await asyncio.sleep(_POLL_SECONDS)

    def _address_of(self, node_id: int) -> tuple[str, int] | None:
        node = self._catalogue.nodes.get(node_id)
        return None if node is None else (node.host, node.port)
