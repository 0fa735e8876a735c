"""Several `SimulatedBroker`s with one registry, each on its own host, whose Kafka listeners serve replication.

    @in_simulated_cluster(nodes=3)
    async def test_...(simulated_cluster: SimulatedCluster) -> None:

It does not reuse `headrace.testkit.cluster.SimCluster`, because that stops the whole run when a broker fails, delays
every registry commit and times out sessions, whereas these tests call handlers without a connection and cause such
failures on purpose.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import pytest
from tests.unit.broker.groups.classic_members import GROUP
from tests.unit.broker.simulated_broker import DATA, FakeConnection, SimulatedBroker

from headrace.broker.broker import Broker, open_broker
from headrace.broker.partition import Partition
from headrace.machines.controller.leadership import with_leader
from headrace.model.registry_records import NO_LEADER, Nodes, PartitionRecord
from headrace.protocols.kafka.listener import KafkaServer, ListenerLimits
from headrace.registry.brokers import CONTROLLER_EPOCH_KEY
from headrace.registry.interface import Check, RegistryOperation, SessionState
from headrace.registry.topics import change_partition, decode_partition, decode_topic, partition_key, topic_key
from headrace.testkit.registry import SimRegistry, SimRegistryEnsemble
from headrace.testkit.world import World
from headrace.wire.messages.groups import FindCoordinatorRequest

POLL_SECONDS = 0.05
TIMEOUT_SECONDS = 60.0
SESSION_SECONDS = 3.0
PORT = 9092


class SimulatedClusterBroker(SimulatedBroker):
    """A broker of a cluster. Its Kafka listener serves the other brokers; tests call its handlers directly."""

    def __init__(self, world: World, node_id: int, registry_ensemble: SimRegistryEnsemble) -> None:
        super().__init__(world, host=f"broker{node_id}")
        self.node_id = node_id
        self.registry_ensemble = registry_ensemble

    async def send(self, request: object, version: int, connection: FakeConnection | None = None) -> Any:
        # A broker that was killed never responds. Its task must not be cancelled when the caller gives up.
        return await asyncio.shield(self.begin_send(request, version, connection))

    async def _open(self) -> Broker:
        host = self.host
        broker = await open_broker(
            DATA,
            self.node_id,
            None,
            self.settings,
            self.registry,
            host.disk,
            host.network,
            host.clock,
            host.entropy,
            self.supervisor,
        )
        server = KafkaServer("PLAINTEXT", broker.handlers, host.network, host.clock, ListenerLimits())
        await broker.join(*await server.listen(host.name, PORT))
        server.start_accepting()
        await broker.cluster.wait_for_leaders()
        return broker


# How a broker leaves the cluster

Leave = Callable[[SimulatedClusterBroker], Awaitable[None]]


async def transfer_leadership(simulated_broker: SimulatedClusterBroker) -> None:
    await simulated_broker.host.start(simulated_broker.broker.cluster.transfer_leadership(), "transfer leadership")


async def stop(simulated_broker: SimulatedClusterBroker) -> None:
    await transfer_leadership(simulated_broker)
    await simulated_broker.close()


async def kill(simulated_broker: SimulatedClusterBroker) -> None:
    simulated_broker.kill()


async def cut_power(simulated_broker: SimulatedClusterBroker) -> None:
    simulated_broker.kill(keep_page_cache=False)


class SimulatedCluster:
    """Without `sessions_time_out`, the session of a dead broker ends at once."""

    def __init__(
        self, nodes: int, settings: Mapping[str, str], *, sessions_time_out: bool = False, seed: int = 1
    ) -> None:
        self.world = World(seed=seed)
        self.registry_ensemble = SimRegistryEnsemble()
        if sessions_time_out:
            self.registry_ensemble.session_timeout_seconds = SESSION_SECONDS
        self.simulated_brokers = {
            node_id: SimulatedClusterBroker(self.world, node_id, self.registry_ensemble)
            for node_id in range(1, nodes + 1)
        }
        for simulated_broker in self.simulated_brokers.values():
            simulated_broker.settings.update(settings)
        self.expected_to_fail: set[int] = set()
        """The brokers that a test expects to give up; `check` skips them."""
        self.registry_ensemble.on_commit = self._on_commit
        self._controllers: dict[int, SimRegistry] = {}  # as the controller, by the version of its epoch
        self._violations: list[str] = []

    def __getitem__(self, node_id: int) -> SimulatedClusterBroker:
        return self.simulated_brokers[node_id]

    @property
    def up(self) -> Iterator[SimulatedClusterBroker]:
        return (simulated_broker for simulated_broker in self.simulated_brokers.values() if simulated_broker.is_open)

    async def open(self, *node_ids: int) -> None:
        """Start the given brokers, or all that are down."""
        for node_id in node_ids or self.simulated_brokers:
            if not self[node_id].is_open:
                await self[node_id].open()

    def check(self) -> None:
        assert self._violations == []
        for simulated_broker in self.up:
            if simulated_broker.node_id not in self.expected_to_fail:
                simulated_broker.check()

    def forget_controllers(self) -> None:
        """Call this after replacing the registry by an older copy, which assigns controller epochs again."""
        self._controllers.clear()

    # Topics

    async def create_topic(self, name: str, *assignment: Nodes, by: int | None = None, **configs: str) -> None:
        """Create a topic with these replicas, by default one partition on all brokers. `by` names the broker that
        creates it."""
        simulated_broker = self[by] if by else next(self.up)
        overrides = {key.replace("_", "."): value for key, value in configs.items()}
        places = assignment or (tuple(self.simulated_brokers),)
        making = simulated_broker.broker.catalogue.create(name, len(places), overrides, assignment=places)
        await simulated_broker.host.start(making, "create")

    def record(self, topic: str, index: int = 0) -> PartitionRecord:
        """The record in the registry, which brokers may not have read yet."""
        topic_id = decode_topic(self.registry_ensemble.entries[topic_key(topic)]).id
        return decode_partition(self.registry_ensemble.entries[partition_key(topic_id, index)])

    def leader(self, topic: str, index: int = 0) -> SimulatedClusterBroker:
        return self[self.record(topic, index).leader]

    def replica(self, node_id: int, topic: str, index: int = 0) -> Partition:
        found = self[node_id].broker.catalogue.topic(topic).replicas.get(index)
        assert found is not None, f"broker {node_id} holds no replica of {topic}-{index}"
        return found

    def leads(self, node_id: int, topic: str, index: int = 0) -> bool:
        found = self[node_id].broker.catalogue.find(topic)
        return found is not None and index in found.led

    # Waiting

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(int(TIMEOUT_SECONDS / POLL_SECONDS)):
            if condition():
                return
            await asyncio.sleep(POLL_SECONDS)
        raise AssertionError(f"the condition was not met within {TIMEOUT_SECONDS} seconds")

    async def wait_until_in_sync(self, topic: str, *members: int, index: int = 0) -> None:
        """Wait until the in-sync set is `members`, by default all replicas, and the live ones have opened their logs.

        Waiting for the logs matters for a new topic, whose record lists all replicas as in sync from the start.
        """

        def are_in_sync() -> bool:
            record = self.record(topic, index)
            up = [
                simulated_broker.broker.catalogue.find(topic)
                for simulated_broker in self.up
                if simulated_broker.node_id in record.isr
            ]
            is_open = all(found is not None and found.replicas.get(index) is not None for found in up)
            return is_open and set(record.isr) == set(members or record.replicas)

        await self.wait_until(are_in_sync)

    async def wait_until_all_in_sync(self, topic: str) -> None:
        """Wait until every replica of every partition is in sync."""
        for index in range(decode_topic(self.registry_ensemble.entries[topic_key(topic)]).partitions):
            await self.wait_until_in_sync(topic, index=index)

    async def wait_for_leader(self, topic: str, node_id: int | None = None, index: int = 0) -> SimulatedClusterBroker:
        """Wait until the given broker, or any broker, leads the partition and has begun its term. Return the leader."""

        def is_leader_here() -> bool:
            leader = self.record(topic, index).leader
            if leader == NO_LEADER or (node_id is not None and leader != node_id):
                return False
            return self[leader].is_open and self.leads(leader, topic, index)

        await self.wait_until(is_leader_here)
        return self.leader(topic, index)

    async def wait_until_identical(self, topic: str) -> None:
        """Wait until all live replicas of partition 0 have the same log and know that all of it is committed."""

        def are_alike() -> bool:
            holders = [node_id for node_id in self.record(topic).replicas if self[node_id].is_open]
            held = [self.replica(node_id, topic) for node_id in holders]
            return len({offset for one in held for offset in (one.log.end_offset, one.high_watermark)}) == 1

        await self.wait_until(are_alike)

    async def wait_for_coordinator(self, group: str = GROUP) -> SimulatedClusterBroker:
        """Wait until a live broker names a live coordinator of the group, and return the coordinator."""
        while True:
            for simulated_broker in self.up:
                found = await simulated_broker.send(FindCoordinatorRequest(key=group), 3)
                if found.error_code == 0 and self[found.node_id].is_open:
                    return self[found.node_id]
            await asyncio.sleep(0.1)

    async def wait_for_new_coordinator(
        self, former: SimulatedClusterBroker, group: str = GROUP
    ) -> SimulatedClusterBroker:
        """Wait until another broker than `former` coordinates the group, and return it."""
        while (coordinator := await self.wait_for_coordinator(group)) is former:
            await asyncio.sleep(0.1)
        return coordinator

    async def change_partition(
        self, topic: str, decide: Callable[[PartitionRecord], PartitionRecord], index: int = 0
    ) -> None:
        """Change the record of a partition in the registry, as a broker would."""
        topic_id = decode_topic(self.registry_ensemble.entries[topic_key(topic)]).id
        await change_partition(SimRegistry(self.registry_ensemble), topic_id, index, decide)

    async def move_leadership(self, topic: str, node_id: int, index: int = 0) -> SimulatedClusterBroker:
        """Make another replica the leader; return when its term has begun."""
        leader = self[node_id].broker.catalogue.nodes[node_id]
        await self.change_partition(topic, lambda record: with_leader(record, leader), index)
        return await self.wait_for_leader(topic, node_id, index)

    # Faults

    def isolate(self, node_id: int) -> None:
        """Cut the broker off from the other brokers. The registry and the test still reach it."""
        for other in self.simulated_brokers.values():
            if other.node_id != node_id:
                self.world.network.cut(self[node_id].host.name, other.host.name)

    def heal(self) -> None:
        self.world.network.heal()

    def expire(self, node_id: int) -> None:
        """End the session of a broker that works correctly."""
        self.registry_ensemble.expire(self[node_id].broker.cluster.membership.session)

    async def replace_disk(self, node_id: int) -> None:
        """Empty the data folder of a broker that is down."""
        assert not self[node_id].is_open
        self[node_id].host.disk.remove_tree("/data")

    def _on_commit(
        self, client: SimRegistry, operations: Sequence[RegistryOperation], state: SessionState | None
    ) -> None:
        for operation in operations:
            if isinstance(operation, Check) and operation.key == CONTROLLER_EPOCH_KEY:
                if self._controllers.setdefault(operation.version, client) is not client:
                    self._violations.append(f"two controllers in the epoch of version {operation.version} (I11)")
                if state is not SessionState.HELD:
                    self._violations.append(f"a controller acts while its session is {state} (I13)")


Test = Callable[..., Coroutine[Any, Any, None]]


def in_simulated_cluster(
    nodes: int = 3, *, sessions_time_out: bool = False, opens: bool = True, seeds: range = range(1, 2), **settings: str
) -> Callable[[Test], Callable[..., None]]:
    """Run the test in virtual time, once per seed, with a `simulated_cluster` of `nodes` brokers.

    The brokers are up unless `opens` is false. Settings have Kafka's names, with underscores instead of dots.
    """

    def decorate(test: Test) -> Callable[..., None]:
        @wraps(test)
        def run(*, seed: int = seeds[0], **arguments: Any) -> None:
            named = {name.replace("_", "."): value for name, value in settings.items()}
            simulated_cluster = SimulatedCluster(nodes, named, sessions_time_out=sessions_time_out, seed=seed)
            try:
                if opens:
                    simulated_cluster.world.run(simulated_cluster.open())
                simulated_cluster.world.run(test(simulated_cluster=simulated_cluster, **arguments))
                simulated_cluster.world.run(asyncio.sleep(1))  # let background work end
                simulated_cluster.check()
            finally:
                simulated_cluster.world.close()

        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name != "simulated_cluster"]
        if len(seeds) > 1:
            others.append(inspect.Parameter("seed", inspect.Parameter.KEYWORD_ONLY))
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return pytest.mark.parametrize("seed", seeds)(run) if len(seeds) > 1 else run

    return decorate
