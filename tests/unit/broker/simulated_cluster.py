"""A simulated cluster of several brokers, whose Kafka listeners serve replication. `in_simulated_cluster` runs a test
in it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

from tests.unit.broker.three_brokers import SimulatedClusterBroker

from headrace.broker.partition import Partition
from headrace.machines.controller.leadership import with_leader
from headrace.model.registry_records import NO_LEADER, Nodes, PartitionRecord
from headrace.registry.brokers import CONTROLLER_EPOCH_KEY
from headrace.registry.interface import Check, RegistryOperation, SessionState
from headrace.registry.topics import PartitionRecords, decode_partition, decode_topic, partition_key, topic_key
from headrace.testkit.registry import SimRegistry, SimRegistryEnsemble
from headrace.testkit.world import World

POLL_SECONDS = 0.05
TIMEOUT_SECONDS = 60.0
SESSION_SECONDS = 3.0


class SimulatedCluster:
    """Without `sessions_time_out`, the session of a dead broker ends at once."""

    def __init__(self, nodes: int, settings: Mapping[str, str], *, sessions_time_out: bool = False) -> None:
        self.world = World(seed=1)
        self.truth = SimRegistryEnsemble()
        if sessions_time_out:
            self.truth.session_timeout_seconds = SESSION_SECONDS
        self.simulated_brokers = {
            node_id: SimulatedClusterBroker(self.world, node_id, self.truth) for node_id in range(1, nodes + 1)
        }
        for simulated_broker in self.simulated_brokers.values():
            simulated_broker.settings.update(settings)
        self.doomed: set[int] = set()
        """Those of whom a test expects that they give up."""
        self.truth.on_commit = self._on_commit
        self._acting: dict[int, SimRegistry] = {}  # as the controller, by the version of its epoch
        self._breaches: list[str] = []

    def __getitem__(self, node_id: int) -> SimulatedClusterBroker:
        return self.simulated_brokers[node_id]

    @property
    def up(self) -> Iterator[SimulatedClusterBroker]:
        return (simulated_broker for simulated_broker in self.simulated_brokers.values() if simulated_broker.is_open)

    async def open(self, *node_ids: int) -> None:
        """Start these, or all that are down."""
        for node_id in node_ids or self.simulated_brokers:
            if not self[node_id].is_open:
                await self[node_id].open()

    def check(self) -> None:
        assert self._breaches == []
        for simulated_broker in self.up:
            if simulated_broker.node_id not in self.doomed:
                simulated_broker.check()

    def forget_controllers(self) -> None:
        """The registry was replaced by an older copy: epochs of the controller are handed out again."""
        self._acting.clear()

    # Topics

    async def make_topic(self, name: str, *assignment: Nodes, by: int | None = None, **configs: str) -> None:
        """With its replicas in these places, by default one partition on all brokers, the first one leading."""
        simulated_broker = self[by] if by else next(self.up)
        overrides = {key.replace("_", "."): value for key, value in configs.items()}
        places = assignment or (tuple(self.simulated_brokers),)
        making = simulated_broker.broker.catalogue.create(name, len(places), overrides, assignment=places)
        await simulated_broker.host.start(making, "create")

    def record(self, topic: str, index: int = 0) -> PartitionRecord:
        """What the registry holds, whatever the brokers have seen of it."""
        topic_id = decode_topic(self.truth.entries[topic_key(topic)]).id
        return decode_partition(self.truth.entries[partition_key(topic_id, index)])

    def leader(self, topic: str, index: int = 0) -> SimulatedClusterBroker:
        return self[self.record(topic, index).leader]

    def replica(self, node_id: int, topic: str, index: int = 0) -> Partition:
        found = self[node_id].broker.catalogue.topic(topic).local(index)
        assert found is not None, f"broker {node_id} holds no replica of {topic}-{index}"
        return found

    def leads(self, node_id: int, topic: str, index: int = 0) -> bool:
        found = self[node_id].broker.catalogue.find(topic)
        return found is not None and index in found.led

    # Waiting

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(int(TIMEOUT_SECONDS / POLL_SECONDS)):
            if condition():
                return
            await asyncio.sleep(POLL_SECONDS)
        raise AssertionError("it did not come to pass")

    async def until_in_sync(self, topic: str, *members: int, index: int = 0) -> None:
        """By default all replicas. Those that are up have opened their logs: a new topic has all in its in-sync set."""

        def are_in_sync() -> bool:
            record = self.record(topic, index)
            up = [
                simulated_broker.broker.catalogue.find(topic)
                for simulated_broker in self.up
                if simulated_broker.node_id in record.isr
            ]
            is_open = all(found is not None and found.local(index) is not None for found in up)
            return is_open and set(record.isr) == set(members or record.replicas)

        await self.until(are_in_sync)

    async def wait_for_leaders(self, topic: str, node_id: int | None = None, index: int = 0) -> SimulatedClusterBroker:
        """By that broker, or by anyone, and it knows."""

        def is_leader_here() -> bool:
            leader = self.record(topic, index).leader
            if leader == NO_LEADER or (node_id is not None and leader != node_id):
                return False
            return self[leader].is_open and self.leads(leader, topic, index)

        await self.until(is_leader_here)
        return self.leader(topic, index)

    async def until_alike(self, topic: str) -> None:
        """All replicas of partition 0 that are up have the same log, and know that all of it is committed."""

        def are_alike() -> bool:
            holders = [node_id for node_id in self.record(topic).replicas if self[node_id].is_open]
            held = [self.replica(node_id, topic) for node_id in holders]
            return len({offset for one in held for offset in (one.log.end_offset, one.high_watermark)}) == 1

        await self.until(are_alike)

    async def change(self, topic: str, decide: Callable[[PartitionRecord], PartitionRecord], index: int = 0) -> None:
        """Write the record of a partition, as some broker would."""
        topic_id = decode_topic(self.truth.entries[topic_key(topic)]).id
        await PartitionRecords(SimRegistry(self.truth)).change(topic_id, index, decide)

    async def move_lead(self, topic: str, node_id: int, index: int = 0) -> SimulatedClusterBroker:
        """Let another replica lead, and return when it knows."""
        leader = self[node_id].broker.catalogue.nodes[node_id]
        await self.change(topic, lambda record: with_leader(record, leader), index)
        return await self.wait_for_leaders(topic, node_id, index)

    # Faults

    def isolate(self, node_id: int) -> None:
        """The other brokers do not reach it, nor it them; the registry and those who ask do."""
        for other in self.simulated_brokers.values():
            if other.node_id != node_id:
                self.world.network.cut(self[node_id].host.name, other.host.name)

    def heal(self) -> None:
        self.world.network.heal()

    def expire(self, node_id: int) -> None:
        """The registry ends the session of a broker that has done nothing wrong."""
        self.truth.expire(self[node_id].broker.cluster.membership.session)

    async def replace_disk(self, node_id: int) -> None:
        """A broker that is down gets an empty folder."""
        assert not self[node_id].is_open
        self[node_id].host.disk.remove_tree("/data")

    def _on_commit(
        self, client: SimRegistry, operations: Sequence[RegistryOperation], state: SessionState | None
    ) -> None:
        for operation in operations:
            if isinstance(operation, Check) and operation.key == CONTROLLER_EPOCH_KEY:
                if self._acting.setdefault(operation.version, client) is not client:
                    self._breaches.append(f"two controllers in the epoch of version {operation.version} (I11)")
                if state is not SessionState.HELD:
                    self._breaches.append(f"a controller acts while its session is {state} (I13)")


Test = Callable[..., Coroutine[Any, Any, None]]


def in_simulated_cluster(
    nodes: int = 3, *, sessions_time_out: bool = False, opens: bool = True, **settings: str
) -> Callable[[Test], Callable[..., None]]:
    """The test runs in virtual time, and takes a `simulated_cluster` of so many brokers, which are up unless `opens` is
    false. Settings by Kafka's names, with underscores instead of dots."""

    def decorate(test: Test) -> Callable[..., None]:
        @wraps(test)
        def run(**arguments: Any) -> None:
            named = {name.replace("_", "."): value for name, value in settings.items()}
            simulated_cluster = SimulatedCluster(nodes, named, sessions_time_out=sessions_time_out)
            try:
                if opens:
                    simulated_cluster.world.run(simulated_cluster.open())
                simulated_cluster.world.run(test(simulated_cluster=simulated_cluster, **arguments))
                simulated_cluster.world.run(asyncio.sleep(1))  # whatever is under way shall end
                simulated_cluster.check()
            finally:
                simulated_cluster.world.close()

        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name != "simulated_cluster"]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate
