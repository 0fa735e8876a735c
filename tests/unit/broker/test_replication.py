"""Which partitions are copied from whom: one loop for each leader, whatever moves."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from tests.unit.broker.asking import produce
from tests.unit.broker.house import House
from tests.unit.broker.town import Town, in_town

from headrace.broker.partition import Partition
from headrace.broker.replication import Replication
from headrace.model.broker_record import BrokerRecord
from headrace.model.partition_record import PartitionRecord

RECORD = PartitionRecord(replicas=(1, 2, 3), isr=(1, 2), leader=2, leader_epoch=4)


class Stage:
    """The loops are named when they are begun, and never run."""

    def __init__(self, house: House) -> None:
        self.loops: list[str] = []
        broker = house.broker
        self.replication = Replication(
            broker.cluster.peers,
            broker.store.flusher,
            lambda: broker.catalogue.config,
            house.host.clock,
            self._spawn,
            1,
            1,
        )

    def follow(self, partition: Partition, node_id: int, record: PartitionRecord = RECORD) -> None:
        leader = BrokerRecord(node_id=node_id, epoch=1, host="h", port=1)
        self.replication.follow(partition, leader, record)

    def followed(self) -> dict[int, int]:
        """How many partitions are copied, by the broker that leads them."""
        return {node_id: len(fetcher) for node_id, fetcher in self.replication._fetchers.items()}

    def _spawn(self, loop: Coroutine[Any, Any, None], name: str) -> None:
        loop.close()
        self.loops.append(name)


async def test_there_is_one_loop_for_each_leader(house: House) -> None:
    await house.make_topic("t", 3)
    stage = Stage(house)
    for index, node_id in enumerate((2, 2, 3)):
        stage.follow(house.partition("t", index), node_id)
    assert stage.loops == ["replication from broker 2", "replication from broker 3"]
    assert stage.followed() == {2: 2, 3: 1}


async def test_a_partition_whose_leader_changes_is_copied_from_the_new_one_only(house: House) -> None:
    await house.make_topic("t")
    stage = Stage(house)
    partition = house.partition("t")
    stage.follow(partition, 2)
    stage.follow(partition, 3)
    assert stage.followed() == {2: 0, 3: 1}
    stage.follow(partition, 2)
    assert (stage.followed(), len(stage.loops)) == ({2: 1, 3: 0}, 2)
    stage.replication.drop(partition)
    stage.replication.drop(partition)
    assert stage.followed() == {2: 0, 3: 0}


async def test_whether_a_replica_is_still_joining_is_told_to_the_loop(house: House) -> None:
    """One that is not in sync yet may be slowed down for the sake of the others."""
    await house.make_topic("t")
    stage = Stage(house)
    partition = house.partition("t")
    outside = PartitionRecord(replicas=(1, 2), isr=(2,), leader=2, leader_epoch=4)
    stage.follow(partition, 2, outside)
    (followed,) = stage.replication._fetchers[2]._followed.values()
    assert followed.is_joining
    stage.follow(partition, 2)
    assert not followed.is_joining
    assert stage.replication._fetchers[2]._followed[partition] is followed, "that is no reason to begin anew"


@in_town()
async def test_the_partitions_of_many_leaders_are_copied_at_the_same_time(town: Town) -> None:
    await town.make_topic("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    for index in range(3):
        await produce(town[index + 1], "t", b"a", partition=index)
    for node_id in (1, 2, 3):
        for index in range(3):
            await town.until(
                lambda node_id=node_id, index=index: town.replica(node_id, "t", index).high_watermark == 1  # type: ignore[misc]
            )


@in_town()
async def test_a_leader_that_stops_is_no_reason_not_to_copy_from_the_others(town: Town) -> None:
    await town.make_topic("t", (1, 3), (2, 3))
    town[1].host.pause(5)
    began = town.world.clock.monotonic()
    assert await produce(town[2], "t", b"a", partition=1) == 0
    assert town.world.clock.monotonic() - began < 1


@in_town()
async def test_a_leader_that_was_started_again_is_copied_from_again(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    town[2].kill()
    town[1].kill()
    await town.open(1)
    await town.open(2)
    await town.until_in_sync("t")
    leader = await town.until_led("t")
    assert await produce(leader, "t", b"a") == 0
    await town.until_alike("t")
