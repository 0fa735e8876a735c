"""Several simulated brokers with one registry, each on its own host, and the invariants that must hold at any moment.

    cluster = SimCluster(world, 3, settings)
    await cluster.start_all()
    cluster.brokers[1].kill()
    cluster.isolate(2)                      # and many other faults
    await cluster.heal()                    # end all faults, start all brokers

The cluster checks continuously: at most one broker leads a partition in one epoch; at most one process acts as the
controller of one epoch (I11), and none does while its session is in doubt (I13); a broker whose session timed out while
it was paused does not respond to heartbeats, OffsetFetch or ListOffsets (I13). A violation ends the run with
`InvariantViolated`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import Any
from uuid import UUID

from headrace.broker.broker import Broker
from headrace.broker.handlers import HandlerFunction, RequestContext
from headrace.broker.partition import Partition
from headrace.model.registry_records import PartitionRecord, TopicRecord
from headrace.registry.brokers import CONTROLLER_EPOCH_KEY, CONTROLLER_KEY, LIVE_KEY
from headrace.registry.interface import Check, Create, RegistryEntry, RegistryOperation, SessionState, is_beneath
from headrace.registry.topics import (
    PARTITIONS_KEY,
    TOPICS_KEY,
    decode_partition,
    decode_topic,
    parse_partition_key,
    partition_key,
)
from headrace.testkit.broker import SimBroker
from headrace.testkit.history import ReplicaContents
from headrace.testkit.registry import SimRegistry, SimRegistryEnsemble
from headrace.testkit.world import World
from headrace.wire.apis import HEARTBEAT, LIST_OFFSETS, OFFSET_FETCH
from headrace.wire.batches.batch import parse_header, split_batches
from headrace.wire.messages.fetch import ListOffsetsResponse

SESSION_SECONDS = 2.0
REGISTRY_DELAY = (0.0001, 0.003)
ROOMY = 1 << 40
RESTART_SECONDS = 0.2


class InvariantViolated(Exception):
    """An invariant of the cluster was violated."""


class SimCluster:
    def __init__(self, world: World, size: int, settings: Mapping[str, str]) -> None:
        self.registry = SimRegistryEnsemble(world.seed)
        self.registry.session_timeout_seconds = SESSION_SECONDS
        self.registry.delay_seconds = REGISTRY_DELAY
        self.registry.on_commit = self._on_commit
        self.brokers = {
            node_id: SimBroker(
                world,
                world.host(f"broker{node_id}"),
                settings,
                node_id=node_id,
                registry=self.registry,
                on_open=partial(self._on_open, node_id),
            )
            for node_id in range(1, size + 1)
        }
        self._world = world
        self._cut_off: set[SimRegistry] = set()
        self._leads: dict[tuple[UUID, int, int], tuple[int, int]] = {}
        self._controllers: dict[int, SimRegistry] = {}
        self._was_set_back = False

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    @property
    def up(self) -> list[SimBroker]:
        return [broker for broker in self.brokers.values() if broker.is_up]

    async def start_all(self) -> None:
        """Start all brokers that are down, repeatedly until all are up."""
        async with asyncio.TaskGroup() as group:
            for broker in self.brokers.values():
                group.create_task(_start(broker))

    async def heal(self) -> None:
        """End every fault and start all brokers. A paused broker resumes when its time is up."""
        self._world.network.heal()
        self._world.network.speed_up()
        self._world.network.delay_seconds = (0.00005, 0.001)
        for broker in self.brokers.values():
            broker.host.disk.capacity_bytes = ROOMY
            broker.host.disk.crash_after(ROOMY)
            broker.host.disk.clear_failures()
            self.reconnect(broker)
            if broker.may_fail:
                broker.kill()  # as its alert asks an operator to do
        await self.start_all()

    def check(self) -> None:
        """Raise if a running broker has an unnoticed failure."""
        for broker in self.brokers.values():
            broker.check()

    # Faults that concern more than one host

    def disconnect(self, broker: SimBroker, *, silently: bool) -> None:
        """Disconnect a broker from the registry; only the process that runs now, not one that is started later."""
        if broker.registry is not None:
            self._cut_off.add(broker.registry)
            broker.registry.disconnect(silently=silently)

    def reconnect(self, broker: SimBroker) -> None:
        if broker.registry in self._cut_off:
            self._cut_off.remove(broker.registry)
            broker.registry.reconnect()

    def expire(self, broker: SimBroker) -> None:
        """Let the registry end a broker's session without a fault of the broker."""
        if broker.broker is not None and broker.broker.cluster.membership.session_valid:
            self.registry.expire(broker.broker.cluster.membership.session)

    def isolate(self, broker: SimBroker, *, inward: bool = True, outward: bool = True) -> None:
        """Cut the paths between a broker and the other brokers; clients and the registry still reach it."""
        for other in self.brokers.values():
            if other is not broker and inward:
                self._world.network.cut(other.host.name, broker.host.name, one_way=True)
            if other is not broker and outward:
                self._world.network.cut(broker.host.name, other.host.name, one_way=True)

    def cut_ring(self) -> None:
        """Let each broker reach only its two neighbours: each sees a different majority."""
        names = [broker.host.name for broker in self.brokers.values()]
        for a, b in permutations(range(len(names)), 2):
            if (a - b) % len(names) not in (1, len(names) - 1) or (len(names) == 3 and {a, b} == {0, 2}):
                self._world.network.cut(names[a], names[b], one_way=True)

    # The registry's backup

    def back_up_registry(self) -> dict[str, RegistryEntry]:
        """All keys except ephemeral ones."""
        return {
            key: entry
            for key, entry in self.registry.entries.items()
            if key != CONTROLLER_KEY and not is_beneath(key, LIVE_KEY)
        }

    def restore_registry(self, copy: Mapping[str, RegistryEntry]) -> None:
        """Replace the registry by a backup. All brokers are down; no session survives.

        Leader epochs of the lost history may be used again, because a broker that starts first cannot know them all.
        But no broker leads in an epoch that its own log contains (`_on_lead`), and diverged replicas are found at the
        end (`diverged`).
        """
        assert all(broker.is_down for broker in self.brokers.values()), "a broker runs"
        for key in list(self.registry.entries):
            self.registry.expire_holder(key)
        self.registry.entries = dict(copy)
        self._leads.clear()
        self._was_set_back = True
        self._controllers.clear()  # epochs are counted in the registry, and no process of an earlier epoch is left

    # State of the cluster

    def unhealthy_partitions(self) -> list[str]:
        """The partitions without a running leader, with a replica out of sync, or without a record."""
        live = {broker.node_id: broker.broker.identity.epoch for broker in self.brokers.values() if broker.broker}
        found = [f"{topic}-{index} has no record" for topic, index in self._missing()]
        for topic, index, record in self.places():
            is_leader_here = record.leader in live and live[record.leader] == record.leader_broker_epoch
            if not is_leader_here or set(record.isr) != set(record.replicas) or record.adding or record.removing:
                found.append(f"{topic}-{index}: {record}")
        return found

    def unknown_brokers(self) -> list[str]:
        """The running brokers that another one does not know yet."""
        return [
            f"broker {one.node_id} does not know broker {other.node_id}"
            for one, other in permutations(self.up, 2)
            if one.broker is not None and other.node_id not in one.broker.catalogue.nodes
        ]

    def unknown_topics(self, names: Iterable[str]) -> list[str]:
        """The topics that a running broker does not know yet."""
        return [
            f"broker {one.node_id} does not know topic {name}"
            for name in names
            for one in self.up
            if one.broker is not None and one.broker.catalogue.find(name) is None
        ]

    def leaders(self) -> list[int]:
        """The leader of each partition."""
        return [record.leader for _, _, record in self.places() if record.leader in self.brokers]

    def diverged_partitions(self) -> list[str]:
        """The partitions whose replicas have different ends, or do not all know that the end is committed."""
        found = []
        for topic, index, record in self.places():
            held = [self.replica(node_id, topic, index) for node_id in record.replicas]
            ends = {(one.log.end_offset, one.high_watermark) if one else None for one in held}
            if len(ends) > 1 or any(end is None or end[0] != end[1] for end in ends):
                found.append(f"{topic}-{index}: {ends}")
        return found

    def replicas(self, topic: str, index: int) -> dict[int, ReplicaContents]:
        """The content of each replica of a partition, read from its disk."""
        found = {}
        for node_id in self.brokers:
            partition = self.replica(node_id, topic, index)
            if partition is not None:
                found[node_id] = ReplicaContents(partition.high_watermark, tuple(_batches(partition)))
        return found

    def _missing(self) -> Iterator[tuple[str, int]]:
        """Partitions without a record, of topics in the registry."""
        for topic in self._topics():
            for index in range(topic.partitions):
                if partition_key(topic.id, index) not in self.registry.entries:
                    yield topic.name, index

    def _topics(self) -> list[TopicRecord]:
        return [decode_topic(entry) for key, entry in self.registry.entries.items() if is_beneath(key, TOPICS_KEY)]

    def places(self) -> Iterator[tuple[str, int, PartitionRecord]]:
        names = {topic.id: topic.name for topic in self._topics()}
        for key, entry in self.registry.entries.items():
            if is_beneath(key, PARTITIONS_KEY):
                topic_id, index = parse_partition_key(key)
                if topic_id in names:
                    yield names[topic_id], index, decode_partition(entry)

    def replica(self, node_id: int, topic: str, index: int) -> Partition | None:
        broker = self.brokers[node_id].broker
        found = None if broker is None else broker.catalogue.find(topic)
        return None if found is None else found.replicas.get(index)

    # Invariants

    def _on_open(self, node_id: int, broker: Broker) -> None:
        start = node_id, broker.identity.epoch
        broker.catalogue.on_leadership_gained.append(partial(self._on_lead, start))
        assert isinstance(broker.registry, SimRegistry)
        for handler in broker.handlers:
            if handler.api.key in (HEARTBEAT, LIST_OFFSETS, OFFSET_FETCH):
                handler.handle = partial(self._handle, broker.registry, handler.handle)

    async def _handle(
        self, registry: SimRegistry, handle: HandlerFunction[Any, Any], request: Any, context: RequestContext
    ) -> Any:
        response = await handle(request, context)
        if registry.has_missed_the_end and 0 in _error_codes(response):
            self._break(f"a broker responds to {type(request).__name__} although its session has timed out (I13)")
        return response

    def _on_lead(self, start: tuple[int, int], partition: Partition) -> None:
        lead = partition.topic_id, partition.index, partition.leader_epoch
        first = self._leads.setdefault(lead, start)
        # The log's epoch cache has already dropped the entries that contradict the new epoch.
        if self._was_set_back and (written := _last_epoch(partition)) >= partition.leader_epoch:
            self._break(f"{start} leads {partition.topic}-{partition.index} in epoch {lead[2]}, has {written} (I11)")
        if first != start:
            self._break(f"{first} and {start} lead {partition.topic}-{partition.index} in epoch {lead[2]} (I11)")

    def _on_commit(
        self, client: SimRegistry, operations: Sequence[RegistryOperation], session_state: SessionState | None
    ) -> None:
        for operation in operations:
            acts = isinstance(operation, Check) and operation.key == CONTROLLER_EPOCH_KEY
            stands = isinstance(operation, Create) and operation.key == CONTROLLER_KEY
            if (acts or stands) and session_state is not SessionState.HELD:
                self._break(f"a controller, or a candidate, commits while its session is {session_state} (I13)")
            if isinstance(operation, Check) and acts:
                first = self._controllers.setdefault(operation.version, client)
                if first is not client:
                    self._break(f"two processes act as the controller of epoch {operation.version} (I11)")

    def _break(self, what: str) -> None:
        self._world.loop.halt(InvariantViolated(what))


def _error_codes(response: Any) -> list[int]:
    """The error codes in a response, of each part that has its own."""
    if isinstance(response, ListOffsetsResponse):
        return [partition.error_code for topic in response.topics for partition in topic.partitions]
    return [part.error_code for part in getattr(response, "groups", None) or [response]]


def _batches(partition: Partition) -> Iterator[tuple[int, bytes]]:
    for segment in partition.log.segments:
        content = segment.open().pread(segment.size, 0) if segment.size else b""
        for batch, header in split_batches(content):
            yield header.base_offset, bytes(batch)


def _last_epoch(partition: Partition) -> int:
    return max((parse_header(batch).leader_epoch for _, batch in _batches(partition)), default=-1)


async def _start(broker: SimBroker) -> None:
    while not broker.is_up:
        if broker.is_down:
            await broker.start()
        else:
            await asyncio.sleep(RESTART_SECONDS)
