"""Each leader has one fetch loop, for exactly the partitions that follow it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from tests.unit.broker.broker_requests import produce
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.broker.partition import Partition
from headrace.broker.replication.replica_fetcher import FollowerFetchers
from headrace.model.registry_records import BrokerRecord, PartitionRecord

RECORD = PartitionRecord(replicas=(1, 2, 3), isr=(1, 2), leader=2, leader_epoch=4)


class FetchersHarness:
    """The loops are named when they are begun, and never run."""

    def __init__(self, simulated_broker: SimulatedBroker) -> None:
        self.loops: list[str] = []
        broker = simulated_broker.broker
        self.replication = FollowerFetchers(
            broker.cluster.peers,
            broker.store.flusher,
            lambda: broker.catalogue.config,
            simulated_broker.host.clock,
            self._spawn,
            1,
            1,
        )

    def follow(self, partition: Partition, node_id: int, record: PartitionRecord = RECORD) -> None:
        leader = BrokerRecord(node_id=node_id, epoch=1, host="h", port=1)
        self.replication.follow(partition, leader, record)

    def followed(self) -> dict[int, int]:
        """How many partitions are copied, by the broker that leads them."""
        return {node_id: len(fetcher._followed) for node_id, fetcher in self.replication._fetchers.items()}

    def _spawn(self, loop: Coroutine[Any, Any, None], name: str) -> None:
        loop.close()
        self.loops.append(name)


async def test_each_leader_has_one_fetch_loop(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 3)
    harness = FetchersHarness(simulated_broker)
    for index, node_id in enumerate((2, 2, 3)):
        harness.follow(simulated_broker.partition("t", index), node_id)
    assert harness.loops == ["replication from broker 2", "replication from broker 3"]
    assert harness.followed() == {2: 2, 3: 1}


async def test_a_partition_is_fetched_only_from_its_new_leader(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    harness = FetchersHarness(simulated_broker)
    partition = simulated_broker.partition("t")
    harness.follow(partition, 2)
    harness.follow(partition, 3)
    assert harness.followed() == {2: 0, 3: 1}
    harness.follow(partition, 2)
    assert (harness.followed(), len(harness.loops)) == ({2: 1, 3: 0}, 2)
    harness.replication.drop(partition)
    harness.replication.drop(partition)
    assert harness.followed() == {2: 0, 3: 0}


async def test_the_fetch_loop_knows_which_replicas_are_joining(simulated_broker: SimulatedBroker) -> None:
    """One that is not in sync yet may be slowed down for the sake of the others."""
    await simulated_broker.create_topic("t")
    harness = FetchersHarness(simulated_broker)
    partition = simulated_broker.partition("t")
    outside = PartitionRecord(replicas=(1, 2), isr=(2,), leader=2, leader_epoch=4)
    harness.follow(partition, 2, outside)
    (followed,) = harness.replication._fetchers[2]._followed.values()
    assert followed.is_joining
    harness.follow(partition, 2)
    assert not followed.is_joining
    assert harness.replication._fetchers[2]._followed[partition] is followed, "that is no reason to begin anew"


@in_simulated_cluster()
async def test_partitions_of_many_leaders_are_fetched_concurrently(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    for index in range(3):
        await produce(simulated_cluster[index + 1], "t", b"a", partition=index)
    for node_id in (1, 2, 3):
        for index in range(3):
            await simulated_cluster.wait_until(
                lambda node_id=node_id, index=index: simulated_cluster.replica(node_id, "t", index).high_watermark == 1  # type: ignore[misc]
            )


@in_simulated_cluster()
async def test_a_stopped_leader_does_not_block_fetches_from_the_others(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 3), (2, 3))
    simulated_cluster[1].host.pause(5)
    began = simulated_cluster.world.clock.monotonic()
    assert await produce(simulated_cluster[2], "t", b"a", partition=1) == 0
    assert simulated_cluster.world.clock.monotonic() - began < 1


@in_simulated_cluster()
async def test_a_restarted_leader_is_fetched_from_again(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    simulated_cluster[2].kill()
    simulated_cluster[1].kill()
    await simulated_cluster.open(1)
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    leader = await simulated_cluster.wait_for_leader("t")
    assert await produce(leader, "t", b"a") == 0
    await simulated_cluster.wait_until_identical("t")
