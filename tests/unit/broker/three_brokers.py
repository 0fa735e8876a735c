"""Three simulated brokers of one cluster, each on its own host, whose Kafka listeners serve replication."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

from tests.unit.broker.groups.classic_members import GROUP
from tests.unit.broker.simulated_broker import DATA, FakeConnection, SimulatedBroker

from headrace.broker.broker import Broker, open_broker
from headrace.model.registry_records import PartitionRecord
from headrace.protocols.kafka.listener import KafkaServer, ListenerLimits
from headrace.testkit.registry import SimRegistryEnsemble
from headrace.testkit.world import World
from headrace.wire.messages.groups import FindCoordinatorRequest

PORT = 9092
NODES = (1, 2, 3)


class SimulatedClusterBroker(SimulatedBroker):
    def __init__(self, world: World, node_id: int, truth: SimRegistryEnsemble) -> None:
        super().__init__(world)
        self.node_id = node_id
        self.host = world.host(f"broker{node_id}")
        self.host.disk.cold_chance = 0.0
        self._truth = truth

    @property
    def is_open(self) -> bool:
        return self._is_open

    async def ask(self, request: object, version: int, fake_connection: FakeConnection | None = None) -> Any:
        # A dead broker never responds, and does not learn that the caller has given up.
        return await asyncio.shield(self.begin(request, version, fake_connection))

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
        await broker.wait_for_leaders()
        return broker


class ThreeBrokers:
    def __init__(self, seed: int) -> None:
        world = self.world = World(seed=seed)
        truth = SimRegistryEnsemble()
        self.simulated_brokers = {node_id: SimulatedClusterBroker(world, node_id, truth) for node_id in NODES}

    def __iter__(self) -> Iterator[SimulatedClusterBroker]:
        """Iterate over the live brokers."""
        return (simulated_broker for simulated_broker in self.simulated_brokers.values() if simulated_broker.is_open)

    async def open(self) -> None:
        for simulated_broker in self.simulated_brokers.values():
            await simulated_broker.open()

    async def coordinator(self, group: str = GROUP) -> SimulatedClusterBroker:
        """The one that the others name, once they name one that is up."""
        while True:
            for simulated_broker in self:
                found = await simulated_broker.ask(FindCoordinatorRequest(key=group), 3)
                if found.error_code == 0 and self.simulated_brokers[found.node_id].is_open:
                    return self.simulated_brokers[found.node_id]
            await simulated_broker.pass_time(0.1)

    async def until_in_sync(self, topic: str) -> None:
        """Wait until every replica of the topic has everything."""
        while not all(len(place.isr) == len(place.replicas) for place in self._places(topic)):
            await next(iter(self)).pass_time(0.1)

    def _places(self, topic: str) -> list[PartitionRecord]:
        return list(next(iter(self)).broker.catalogue.topic(topic).partition_records.values())


def with_three_brokers(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test runs in virtual time, and takes a `three_brokers`, which is up."""

    @wraps(test)
    def run(three_brokers: ThreeBrokers, **arguments: Any) -> None:
        three_brokers.world.run(test(three_brokers, **arguments))

    return run
