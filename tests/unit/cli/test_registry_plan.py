"""What `headrace registry rebuild` and `headrace log adopt` write, given what the data folders hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from headrace.cli.log_inventory import LogInventory
from headrace.cli.registry import plan_for, raise_producer_ids
from headrace.machines.controller.registry_rebuild import PRODUCER_ID_MARGIN, LogEnd
from headrace.model.registry_records import TopicRecord
from headrace.registry.brokers import decode_number
from headrace.registry.counters import PRODUCER_IDS_KEY
from headrace.registry.interface import Create
from headrace.registry.topics import tombstone_key
from headrace.testkit.registry import SimRegistry, SimRegistryEnsemble
from headrace.testkit.world import World

ID = UUID(int=1)


def simulated(test: Callable[[SimRegistry], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        world = World(seed=1)
        world.run(test(SimRegistry(SimRegistryEnsemble())))  # type: ignore[arg-type]
        world.close()

    run.__name__ = test.__name__
    return run


def inventory() -> LogInventory:
    found = LogInventory()
    found.topics[ID] = TopicRecord(name="orders", id=ID, partitions=1, created_ms=0)
    found.logs[ID, 0] = {1: LogEnd(0, 5)}
    return found


@simulated
async def test_a_topic_that_was_deleted_by_request_is_not_rebuilt_but_can_be_adopted(registry: SimRegistry) -> None:
    await registry.commit([Create(tombstone_key(ID), b"1")])
    plan = await plan_for(registry, inventory())
    assert plan.is_empty
    assert plan.problems == [f"topic id {ID}: skipped, because a client deleted the topic"]
    adopted = await plan_for(registry, inventory(), adopts=True)
    assert [record.name for record, _ in adopted.created] == ["orders"]


@simulated
async def test_producer_ids_are_raised_beyond_the_logs_and_the_floor_of_the_folders(registry: SimRegistry) -> None:
    await registry.commit([Create(PRODUCER_IDS_KEY, b"3000")])
    found = inventory()
    found.producer_id_max, found.producer_id_floor = 1_500, 3_000
    await raise_producer_ids(registry, found)
    assert decode_number(await registry.get(PRODUCER_IDS_KEY)) == 3_000 + PRODUCER_ID_MARGIN
