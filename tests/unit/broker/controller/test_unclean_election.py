"""`unclean.leader.election.enable` in a whole cluster: the controller prefers availability to completeness."""

from __future__ import annotations

import pytest
from tests.unit.broker.broker_requests import produce, read_all
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster


async def lose_the_in_sync_replica(simulated_cluster: SimulatedCluster, unclean: str = "false") -> None:
    """Broker 2 misses the second record and is live; broker 1, which has both records, is down."""
    await simulated_cluster.create_topic("t", (1, 2), unclean_leader_election_enable=unclean)
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until(lambda: simulated_cluster.record("t").isr == (1,))
    await produce(simulated_cluster[1], "t", b"b")
    simulated_cluster[1].kill()
    await simulated_cluster.wait_until(lambda: simulated_cluster.record("t").leader == -1)
    await simulated_cluster.open(2)


@in_simulated_cluster()
async def test_a_replica_that_lacks_records_becomes_the_leader(
    simulated_cluster: SimulatedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await lose_the_in_sync_replica(simulated_cluster, unclean="true")
    await simulated_cluster.wait_for_leader("t", 2)
    assert await read_all(simulated_cluster[2], "t") == [b"a"]
    assert "unclean leader election, records may be lost partition=t-0 leader=2" in caplog.text
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")


@in_simulated_cluster()
async def test_the_setting_takes_effect_for_a_partition_that_already_waits(simulated_cluster: SimulatedCluster) -> None:
    await lose_the_in_sync_replica(simulated_cluster)
    await simulated_cluster[2].pass_time(5)
    assert simulated_cluster.record("t").leader == -1
    catalogue = simulated_cluster[2].broker.catalogue
    change = catalogue.change_configs("t", lambda configs: {**configs, "unclean.leader.election.enable": "true"})
    await simulated_cluster[2].host.start(change, "change")
    await simulated_cluster.wait_for_leader("t", 2)
