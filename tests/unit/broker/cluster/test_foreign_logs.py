"""Two leaders wrote in one leader epoch, because the registry was restored from an older copy in between."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest
from tests.unit.broker.broker_requests import produce, read_all
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.model.errors import StorageFailure
from headrace.registry.interface import RegistryEntry
from headrace.storage.store.stray_logs import stray_logs


def back_up(simulated_cluster: SimulatedCluster) -> dict[str, RegistryEntry]:
    return {
        key: one
        for key, one in simulated_cluster.registry_ensemble.entries.items()
        if not key.startswith(("/live", "/controller"))
    }


def restore(simulated_cluster: SimulatedCluster, backup: Mapping[str, RegistryEntry]) -> None:
    """While all brokers are down."""
    simulated_cluster.registry_ensemble.entries.clear()
    simulated_cluster.registry_ensemble.entries.update(backup)
    simulated_cluster.forget_controllers()


async def roll_back(simulated_cluster: SimulatedCluster) -> None:
    """Broker 2 writes in an epoch that is in no backup, and stops. Broker 1 was down meanwhile; it leads in the same
    epoch on the older registry, and writes something else."""
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"both")
    await simulated_cluster.wait_until_identical("t")
    await simulated_cluster[1].close()
    backup = back_up(simulated_cluster)
    await simulated_cluster.wait_for_leader("t", 2)
    await produce(simulated_cluster[2], "t", b"before-1")
    await produce(simulated_cluster[2], "t", b"before-2")
    await simulated_cluster[2].close()
    restore(simulated_cluster, backup)
    await simulated_cluster.open(1)
    await simulated_cluster.wait_for_leader("t", 1)
    await produce(simulated_cluster[1], "t", b"after")


@in_simulated_cluster(2)
async def test_a_log_with_another_history_becomes_stray_and_is_replicated_again(
    simulated_cluster: SimulatedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await roll_back(simulated_cluster)
    with caplog.at_level(logging.WARNING):
        await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")
    await simulated_cluster.move_leadership("t", 2)
    assert await read_all(simulated_cluster[2], "t") == [b"both", b"after"]
    assert [one.key for one in stray_logs(simulated_cluster[2].host.disk, "/data")] == [
        simulated_cluster.replica(2, "t").log.key
    ]
    assert "log diverges from the partition after a registry rollback" in caplog.text


@in_simulated_cluster(2)
async def test_a_broker_that_was_down_while_others_led_keeps_its_log(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    await simulated_cluster[1].close()
    await simulated_cluster.wait_for_leader("t", 2)
    await produce(simulated_cluster[2], "t", b"b")
    for _ in range(3):
        await simulated_cluster[2].close()
        await simulated_cluster.open(2)
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until_in_sync("t")
    assert stray_logs(simulated_cluster[1].host.disk, "/data") == []
    assert await read_all(await simulated_cluster.wait_for_leader("t"), "t") == [b"a", b"b"]


@in_simulated_cluster(2)
async def test_a_damaged_file_of_known_leaders_says_what_to_do(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster[2].close()
    simulated_cluster[2].host.disk.write_atomically("/data/known-leaders", b"{")
    with pytest.raises(StorageFailure, match=r"known-leaders is damaged.*remove it.*registry rebuild"):
        await simulated_cluster.open(2)
