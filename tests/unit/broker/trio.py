"""Three brokers of one cluster, each in a house of its own, with doors by which they copy from each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

from tests.unit.broker.house import DATA, House, Visit
from tests.unit.broker.members import GROUP

from headrace.broker.broker import Broker, open_broker
from headrace.doors.kafka.listener import DoorLimits, KafkaDoor
from headrace.model.partition_record import PartitionRecord
from headrace.testkit.registry import SimRegistryState
from headrace.testkit.world import World
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest

PORT = 9092
NODES = (1, 2, 3)


class ClusterHouse(House):
    def __init__(self, world: World, node_id: int, truth: SimRegistryState) -> None:
        super().__init__(world)
        self.node_id = node_id
        self.host = world.host(f"broker{node_id}")
        self.host.disk.cold_chance = 0.0
        self._truth = truth

    @property
    def is_open(self) -> bool:
        return self._is_open

    async def ask(self, request: object, version: int, visit: Visit | None = None) -> Any:
        # A broker that has died never answers, nor does it hear that whoever asked has given up.
        return await asyncio.shield(self.begin(request, version, visit))

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
        door = KafkaDoor("PLAINTEXT", broker.handlers, host.network, host.clock, DoorLimits())
        await broker.join(*await door.listen(host.name, PORT))
        door.start_accepting()
        await broker.until_led()
        return broker


class Trio:
    def __init__(self, seed: int) -> None:
        world = self.world = World(seed=seed)
        truth = SimRegistryState()
        self.houses = {node_id: ClusterHouse(world, node_id, truth) for node_id in NODES}

    def __iter__(self) -> Iterator[ClusterHouse]:
        """Those that are up."""
        return (house for house in self.houses.values() if house.is_open)

    async def open(self) -> None:
        for house in self.houses.values():
            await house.open()

    async def coordinator(self, group: str = GROUP) -> ClusterHouse:
        """The one that the others name, once they name one that is up."""
        while True:
            for house in self:
                found = await house.ask(FindCoordinatorRequest(key=group), 3)
                if found.error_code == 0 and self.houses[found.node_id].is_open:
                    return self.houses[found.node_id]
            await house.pass_time(0.1)

    async def until_in_sync(self, topic: str) -> None:
        """Wait until every replica of the topic has everything."""
        while not all(len(place.isr) == len(place.replicas) for place in self._places(topic)):
            await next(iter(self)).pass_time(0.1)

    def _places(self, topic: str) -> list[PartitionRecord]:
        return list(next(iter(self)).broker.catalogue.topic(topic).places.values())


def in_trio(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test runs in virtual time, and takes a `trio`, which is up."""

    @wraps(test)
    def run(trio: Trio, **arguments: Any) -> None:
        trio.world.run(test(trio, **arguments))

    return run
