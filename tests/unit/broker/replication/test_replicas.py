"""The replicas of a broker are created, led, followed, replaced and removed as the partition records say."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest
from msgspec.structs import replace
from tests.unit.broker.broker_requests import batch, produce, produce_request, read_all, send
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.machines.controller.leadership import with_leader
from headrace.machines.controller.reassignment import begin_reassignment, cancel_reassignment
from headrace.model.errors import NotLeader, RequestTimedOut, StorageFailure
from headrace.model.registry_records import PartitionRecord, TopicRecord
from headrace.registry.interface import Delete, RegistryEntry
from headrace.registry.topics import encode_partition, partition_key, topic_key
from headrace.runtime.disk import DiskFull
from headrace.storage.log.log import Log
from headrace.storage.segments.scan import BadBatch
from headrace.storage.store.topic_files import read_topic_files
from headrace.testkit.registry import SimRegistry


def folders(simulated_cluster: SimulatedCluster, node_id: int) -> list[str]:
    return simulated_cluster[node_id].host.disk.list("/data/logs")


def damage(log: Log) -> None:
    """As a reader finds it."""
    log.quarantine(log.active, BadBatch(0, "its bits have rotted"), 0)


# Making and giving up


@in_simulated_cluster()
async def test_a_topic_has_logs_where_its_replicas_are_and_nowhere_else(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2), (2, 3), by=3)
    topic_id = simulated_cluster[1].broker.catalogue.topic("t").id.hex
    await simulated_cluster.wait_until(lambda: all(folders(simulated_cluster, node_id) for node_id in (1, 2, 3)))
    found = {
        node_id: [name.removeprefix(topic_id) for name in folders(simulated_cluster, node_id)] for node_id in (1, 2, 3)
    }
    assert found == {1: ["-0"], 2: ["-0", "-1"], 3: ["-1"]}
    assert [(simulated_cluster.leads(1, "t", 0), simulated_cluster.leads(2, "t", 1))] == [(True, True)]


@in_simulated_cluster()
async def test_a_reassigned_replica_is_copied_and_the_old_one_removed(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.change_partition("t", lambda record: begin_reassignment(record, (3, 2)))
    await simulated_cluster.wait_until(lambda: not simulated_cluster.record("t").removing)
    leader = await simulated_cluster.wait_for_leader("t")
    assert set(simulated_cluster.record("t").isr) == {2, 3}
    await simulated_cluster.wait_until(lambda: not folders(simulated_cluster, 1))
    assert await read_all(leader, "t") == [b"a"]
    assert simulated_cluster[1].broker.catalogue.topic("t").replicas == {}


@in_simulated_cluster()
async def test_a_replica_removed_during_its_copy_leaves_nothing_behind(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a" * 100_000)
    simulated_cluster[3].host.disk.delay_seconds = (0.2, 0.2)  # its flushes take long
    await simulated_cluster.change_partition("t", lambda record: begin_reassignment(record, (1, 2, 3)))
    await simulated_cluster.wait_until(
        lambda: simulated_cluster[3].broker.catalogue.topic("t").replicas.get(0) is not None
    )
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(3, "t").log.end_offset == 1)
    assert simulated_cluster.replica(3, "t").log.flushed_offset == 0
    await simulated_cluster.change_partition("t", cancel_reassignment)
    await simulated_cluster.wait_until(lambda: not folders(simulated_cluster, 3))
    assert await produce(simulated_cluster[1], "t", b"b") == 1
    await simulated_cluster.wait_until_in_sync("t", 1, 2)
    await simulated_cluster.change_partition("t", lambda record: begin_reassignment(record, (1, 2, 3)))
    await simulated_cluster.wait_until_in_sync("t", 1, 2, 3)
    await simulated_cluster.wait_until_identical("t")


def strays(simulated_cluster: SimulatedCluster, node_id: int) -> list[str]:
    disk = simulated_cluster[node_id].host.disk
    return [name for name in disk.list("/data/stray") if "-" in name] if disk.exists("/data/stray") else []


@in_simulated_cluster()
async def test_at_the_start_logs_of_deleted_topics_are_deleted_and_other_unknown_logs_become_stray(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("gone", (1, 2))
    await simulated_cluster.create_topic("moved", (1, 2))
    moved = simulated_cluster[1].broker.catalogue.topic("moved").id
    await simulated_cluster.wait_until(lambda: len(folders(simulated_cluster, 2)) == 2)
    simulated_cluster[2].kill()
    await simulated_cluster[1].delete_topic("gone")
    await simulated_cluster.change_partition("moved", lambda record: replace(record, replicas=(1,), isr=(1,)))
    await simulated_cluster.open(2)
    assert (folders(simulated_cluster, 2), strays(simulated_cluster, 2)) == ([], [f"{moved.hex}-0"])


@in_simulated_cluster(1)
async def test_logs_of_topics_unknown_to_an_older_registry_are_kept_and_restored_with_the_newer_one(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("old", (1,))
    older = dict(simulated_cluster.registry_ensemble.entries)
    await simulated_cluster.create_topic("new", (1,))
    topic_id = simulated_cluster[1].broker.catalogue.topic("new").id
    await produce(simulated_cluster[1], "new", b"a")
    simulated_cluster[1].kill()
    newer = dict(simulated_cluster.registry_ensemble.entries)
    simulated_cluster.registry_ensemble.entries = {**older}
    simulated_cluster.forget_controllers()
    await simulated_cluster.open(1)
    assert strays(simulated_cluster, 1) == [f"{topic_id.hex}-0"]
    simulated_cluster[1].kill()
    simulated_cluster.registry_ensemble.entries = {**newer}
    simulated_cluster.forget_controllers()
    await simulated_cluster.open(1)
    assert strays(simulated_cluster, 1) == []
    await simulated_cluster.wait_for_leader("new", 1)
    assert await read_all(simulated_cluster[1], "new") == [b"a"]


@pytest.mark.parametrize("is_deleted", [False, True])
@in_simulated_cluster(1)
async def test_logs_of_a_topic_that_vanishes_without_a_deletion_are_kept(
    simulated_cluster: SimulatedCluster, is_deleted: bool
) -> None:
    """As when the registry's servers are replaced by an older copy."""
    await simulated_cluster.create_topic("t", (1,))
    await produce(simulated_cluster[1], "t", b"a")
    topic_id = simulated_cluster[1].broker.catalogue.topic("t").id
    if is_deleted:
        await simulated_cluster[1].delete_topic("t")
    else:
        entry = simulated_cluster.registry_ensemble.entries[topic_key("t")]
        await SimRegistry(simulated_cluster.registry_ensemble).commit([Delete(entry.key, entry.version)])
    await simulated_cluster.wait_until(lambda: not folders(simulated_cluster, 1))
    assert strays(simulated_cluster, 1) == ([] if is_deleted else [f"{topic_id.hex}-0"])
    if not is_deleted:
        simulated_cluster[1].kill()
        places = {key: one for key, one in simulated_cluster.registry_ensemble.entries.items() if topic_id.hex in key}
        assert not places, "the controller has removed the partitions of the topic that is gone"
        simulated_cluster.registry_ensemble.entries[entry.key] = entry
        simulated_cluster.registry_ensemble.entries[partition_key(topic_id, 0)] = RegistryEntry(
            partition_key(topic_id, 0), encode_partition(PartitionRecord(replicas=(1,), isr=(1,))), 0
        )
        await simulated_cluster.open(1)
        await simulated_cluster.wait_for_leader("t", 1)
        assert await read_all(simulated_cluster[1], "t") == [b"a"]


@in_simulated_cluster()
async def test_the_record_of_a_topic_is_kept_beside_its_logs_and_follows_its_changes(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    catalogue = simulated_cluster[1].broker.catalogue
    topic_id = catalogue.topic("t").id

    def records(node_id: int) -> list[TopicRecord]:
        return list(read_topic_files(simulated_cluster[node_id].host.disk, "/data/topics").values())

    await simulated_cluster.wait_until(lambda: records(1) == records(2) == [catalogue.topic("t").record])
    await simulated_cluster[1].host.start(catalogue.change_configs("t", lambda _: {"segment.bytes": "4096"}), "alter")
    await simulated_cluster[1].host.start(catalogue.add_partitions("t", 2, assignment=[(1, 2)]), "grow")
    await simulated_cluster.wait_until(lambda: records(1) == records(2) == [catalogue.topic("t").record])
    assert (records(1)[0].configs, records(1)[0].partitions) == ({"segment.bytes": "4096"}, 2)
    simulated_cluster[2].kill()
    simulated_cluster[2].host.disk.remove(f"/data/topics/{topic_id.hex}.json")  # as a folder of the previous version
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until(lambda: records(2) == records(1))
    await simulated_cluster[1].delete_topic("t")
    await simulated_cluster.wait_until(lambda: records(1) == records(2) == [])


@in_simulated_cluster()
async def test_a_topic_deleted_and_recreated_under_load_is_the_new_one(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2, 3))
    sending = simulated_cluster[1].begin_send(produce_request({("t", 0): batch(b"old")}), 9)
    await simulated_cluster[1].run_ready_tasks()
    await simulated_cluster[2].delete_topic("t")
    await simulated_cluster.create_topic("t", (2, 3, 1), by=2)
    await sending
    assert await produce(simulated_cluster[2], "t", b"new") == 0
    await simulated_cluster.wait_until_identical("t")
    assert await read_all(simulated_cluster[2], "t") == [b"new"]
    await simulated_cluster.wait_until(
        lambda: all(len(folders(simulated_cluster, node_id)) == 1 for node_id in (1, 2, 3))
    )


@in_simulated_cluster()
async def test_a_topic_deleted_while_its_logs_are_created_leaves_none(simulated_cluster: SimulatedCluster) -> None:
    simulated_cluster[3].host.disk.delay_seconds = (0.3, 0.3)
    making = simulated_cluster[1].host.start(
        simulated_cluster[1].broker.catalogue.create("t", 1, {}, assignment=[(1, 3)]), "create"
    )
    await simulated_cluster.wait_until(lambda: simulated_cluster[1].broker.catalogue.find("t") is not None)
    await simulated_cluster[1].delete_topic("t")
    await asyncio.wait([making])
    await asyncio.sleep(3)
    assert (folders(simulated_cluster, 1), folders(simulated_cluster, 3)) == ([], [])


# Leading and following


@in_simulated_cluster()
async def test_a_reelected_broker_leads_in_a_new_epoch(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    leads: list[int] = []
    resigns: list[int] = []
    simulated_cluster[1].broker.catalogue.on_leadership_gained.append(
        lambda partition: leads.append(partition.leader_epoch)
    )
    simulated_cluster[1].broker.catalogue.on_leadership_lost.append(
        lambda partition: resigns.append(partition.leader_epoch)
    )
    simulated_cluster.isolate(1)  # so that nothing is committed
    waiting = simulated_cluster[1].begin_send(produce_request({("t", 0): batch(b"a")}), 9)
    await simulated_cluster[1].run_ready_tasks()
    node = simulated_cluster[1].broker.catalogue.nodes[1]
    await simulated_cluster.change_partition("t", lambda record: with_leader(record, node))
    response = (await waiting).responses[0].partition_responses[0]
    assert response.error_code == NotLeader.code, "its epoch is over: nobody knows whether it will be committed"
    await simulated_cluster.wait_until(
        lambda: simulated_cluster.replica(1, "t").leader_epoch == 1 and simulated_cluster.leads(1, "t")
    )
    assert (leads, resigns) == ([1], [0])
    simulated_cluster.heal()
    assert await produce(simulated_cluster[1], "t", b"b") == 1
    await simulated_cluster.wait_until_identical("t")
    assert simulated_cluster.replica(2, "t").log.epochs.entries() == ((0, 0), (1, 1))


@in_simulated_cluster()
async def test_an_epoch_that_is_over_before_the_disk_is_ready_is_never_led(simulated_cluster: SimulatedCluster) -> None:
    """A leadership waits for a truncation of the log in progress; the record may change meanwhile."""
    await simulated_cluster.create_topic("t", (1, 2))
    await simulated_cluster.wait_until(
        lambda: simulated_cluster[2].broker.catalogue.topic("t").replicas.get(0) is not None
    )
    follower = simulated_cluster.replica(2, "t")
    await follower.changing.acquire()
    first = simulated_cluster[1].broker.catalogue.nodes[1]
    second = simulated_cluster[2].broker.catalogue.nodes[2]
    await simulated_cluster.change_partition("t", lambda record: with_leader(record, second))
    await asyncio.sleep(1)
    assert not follower.is_leader
    await simulated_cluster.change_partition("t", lambda record: with_leader(record, first))
    await simulated_cluster.wait_for_leader("t", 1)
    follower.changing.release()
    await asyncio.sleep(1)
    assert (follower.is_leader, follower.leader_epoch) == (False, 2)
    assert await produce(simulated_cluster[1], "t", b"a") == 0


@in_simulated_cluster()
async def test_a_leadership_ends_at_once_even_when_the_disk_is_busy(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    partition = simulated_cluster.replica(1, "t")
    await partition.changing.acquire()
    second = simulated_cluster[2].broker.catalogue.nodes[2]
    await simulated_cluster.change_partition("t", lambda record: with_leader(record, second))
    await simulated_cluster.wait_until(
        lambda: simulated_cluster[1].broker.catalogue.partition_record("t", 0).leader == 2
    )
    with pytest.raises(NotLeader):
        simulated_cluster[1].partition("t")
    assert not partition.is_leader
    partition.changing.release()
    await simulated_cluster.wait_for_leader("t", 2)


@in_simulated_cluster()
async def test_only_the_leader_applies_retention(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await simulated_cluster.wait_until(
        lambda: simulated_cluster[2].broker.catalogue.topic("t").replicas.get(0) is not None
    )
    assert simulated_cluster.replica(1, "t").log.enforces_retention
    assert not simulated_cluster.replica(2, "t").log.enforces_retention
    await simulated_cluster.move_leadership("t", 2)
    await simulated_cluster.wait_until(lambda: not simulated_cluster.replica(1, "t").log.enforces_retention)
    assert simulated_cluster.replica(2, "t").log.enforces_retention


@in_simulated_cluster()
async def test_changed_configs_reach_the_logs_of_all_replicas(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    changing = simulated_cluster[3].broker.catalogue.change_configs("t", lambda _: {"segment.bytes": "4096"})
    await simulated_cluster[3].host.start(changing, "change")
    await simulated_cluster.wait_until(
        lambda: all(simulated_cluster.replica(node_id, "t").log.config.segment_bytes == 4096 for node_id in (1, 2))
    )
    assert simulated_cluster.replica(2, "t").config.segment_bytes == 4096


# Disk failures


@in_simulated_cluster()
async def test_a_replica_that_cannot_be_created_does_not_block_other_leaderships(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("well", (1, 2))
    await simulated_cluster.wait_until_in_sync("well")
    for _ in range(100):
        simulated_cluster[2].host.disk.fail_next("make", "/data/logs/*", errno.ENOSPC)
    await simulated_cluster.create_topic("full", (1, 2))
    await asyncio.sleep(1)
    assert simulated_cluster[2].broker.catalogue.topic("full").replicas == {}
    simulated_cluster[1].kill()
    await simulated_cluster.wait_for_leader("well", 2)
    assert await produce(simulated_cluster[2], "well", b"a") == 0


@in_simulated_cluster()
async def test_a_replica_that_could_not_be_created_is_created_when_there_is_space(
    simulated_cluster: SimulatedCluster,
) -> None:
    for _ in range(3):
        simulated_cluster[2].host.disk.fail_next("make", "/data/logs/*", errno.ENOSPC)
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(2, "t").high_watermark == 1)


@in_simulated_cluster()
async def test_a_topic_whose_logs_cannot_be_created_is_rejected_and_removed(
    simulated_cluster: SimulatedCluster,
) -> None:
    simulated_cluster[1].host.disk.fail_next("make", "/data/logs/*", errno.ENOSPC)
    with pytest.raises(DiskFull):
        await simulated_cluster.create_topic("t", (1, 2), by=1)
    await simulated_cluster.wait_until(lambda: simulated_cluster[2].broker.catalogue.find("t") is None)
    await simulated_cluster.create_topic("t", (1, 2), by=1)
    assert await produce(simulated_cluster[1], "t", b"a") == 0


@in_simulated_cluster()
async def test_a_log_that_cannot_be_removed_is_removed_by_the_next_start(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await simulated_cluster.wait_until(lambda: bool(folders(simulated_cluster, 2)))
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster[2].host.disk.fail_next("rename", "/data/logs/*", errno.EIO)
    await simulated_cluster[1].delete_topic("t")
    await simulated_cluster.create_topic("next", (2, 1), by=2)
    assert await produce(simulated_cluster[2], "next", b"a") == 0, "it blocks no other topic"
    await simulated_cluster[2].restart()
    assert len(folders(simulated_cluster, 2)) == 1


@in_simulated_cluster()
async def test_a_leader_whose_disk_fails_is_replaced_and_nothing_is_lost(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", min_insync_replicas="2")
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[1].host.disk.fail_next("sync", "*.log")
    response = await send(simulated_cluster[1], "t", batch(b"b"))
    assert response.error_code == StorageFailure.code
    leader = await simulated_cluster.wait_for_leader("t", 2)
    assert 1 not in simulated_cluster.record("t").isr
    assert await produce(leader, "t", b"c") > 0
    assert (await read_all(leader, "t"))[0] == b"a"
    await simulated_cluster[1].restart()
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")


@in_simulated_cluster()
async def test_a_follower_whose_disk_fails_leaves_the_in_sync_set_at_once(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[2].host.disk.fail_next("sync", "*.log")
    assert await produce(simulated_cluster[1], "t", b"b") == 1
    await simulated_cluster.wait_until_in_sync("t", 1, 3)
    assert simulated_cluster.leader("t") is simulated_cluster[1]
    await simulated_cluster[2].restart()
    await simulated_cluster.wait_until_in_sync("t")


@in_simulated_cluster()
async def test_a_follower_with_a_full_disk_continues_when_there_is_space(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    disk = simulated_cluster[2].host.disk
    capacity, disk.capacity_bytes = disk.capacity_bytes, disk._used_bytes
    response = await simulated_cluster[1].send(produce_request({("t", 0): batch(b"b")}, timeout_ms=1000), 9)
    assert response.responses[0].partition_responses[0].error_code == RequestTimedOut.code, "it is still waited for"
    assert simulated_cluster.replica(2, "t").log.usable
    disk.capacity_bytes = capacity
    await simulated_cluster.wait_until_identical("t")
    assert simulated_cluster.replica(2, "t").high_watermark == 2


# When a log is damaged


@in_simulated_cluster()
async def test_a_damaged_follower_leaves_the_in_sync_set_until_its_restart(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a", b"b")
    await simulated_cluster.wait_until_identical("t")
    damage(simulated_cluster.replica(2, "t").log)
    await simulated_cluster.wait_until(lambda: 2 not in simulated_cluster.record("t").isr)
    path = simulated_cluster.replica(2, "t").log.active.path
    simulated_cluster[2].kill()
    simulated_cluster[2].host.disk.flip_bit(path, 70)
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")
    (kept, log) = sorted(folders(simulated_cluster, 2), key=len, reverse=True)
    assert kept.startswith(log), "the damaged log is kept for inspection"


@in_simulated_cluster()
async def test_a_damaged_leader_gives_up_leadership_and_is_never_elected(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    damage(simulated_cluster.replica(1, "t").log)
    assert (await send(simulated_cluster[1], "t", batch(b"b"))).error_code != 0
    leader = await simulated_cluster.wait_for_leader("t", 2)
    assert await produce(leader, "t", b"c") == 1
    assert 1 not in (*simulated_cluster.record("t").isr, *simulated_cluster.record("t").elr)
    simulated_cluster[1].kill()
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")


@in_simulated_cluster()
async def test_a_log_found_damaged_at_the_start_leaves_the_in_sync_set_before_it_can_lead(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a", b"b")
    await simulated_cluster.wait_until_identical("t")
    path = simulated_cluster.replica(2, "t").log.active.path
    for simulated_broker in (simulated_cluster[1], simulated_cluster[2]):
        simulated_broker.kill()
    simulated_cluster[2].host.disk.flip_bit(path, 70)
    await simulated_cluster.open(2)
    assert (simulated_cluster.record("t").isr, simulated_cluster.record("t").leader) == ((1,), -1)
    assert simulated_cluster.replica(2, "t").log.quarantined is not None, "there is no leader to copy from yet"
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until_in_sync("t")
    assert await read_all(simulated_cluster.leader("t"), "t") == [b"a", b"b"]
    assert simulated_cluster.replica(2, "t").log.quarantined is None


@in_simulated_cluster()
async def test_a_missing_log_is_not_taken_for_an_empty_one(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    folder = simulated_cluster.replica(2, "t").log.folder
    for simulated_broker in (simulated_cluster[1], simulated_cluster[2]):
        simulated_broker.kill()
    simulated_cluster[2].host.disk.remove_tree(folder)
    await simulated_cluster.open(2)
    assert simulated_cluster.record("t").leader == -1
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until_in_sync("t")
    assert await read_all(simulated_cluster.leader("t"), "t") == [b"a"]


@in_simulated_cluster()
async def test_the_last_replica_stays_in_the_in_sync_set_even_if_damaged(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    damaged = simulated_cluster.replica(1, "t")
    damage(damaged.log)
    await simulated_cluster.wait_until(lambda: simulated_cluster.record("t").leader == -1)
    await asyncio.sleep(2)
    assert simulated_cluster.record("t").isr == ()
    assert simulated_cluster.replica(1, "t") is damaged
    assert len(folders(simulated_cluster, 1)) == 1


@in_simulated_cluster(1)
async def test_waiting_for_the_replicas_raises_the_error_that_blocks_them(simulated_cluster: SimulatedCluster) -> None:
    simulated_cluster[1].host.disk.fail_next("make", "/data/logs/*", errno.EIO)
    with pytest.raises(StorageFailure):
        await simulated_cluster.create_topic("t", (1,))
    assert simulated_cluster[1].broker.catalogue.find("t") is None


@in_simulated_cluster(1)
async def test_waiting_for_the_replicas_includes_changes_in_progress(
    simulated_cluster: SimulatedCluster,
) -> None:
    simulated_broker = simulated_cluster[1]
    simulated_broker.host.disk.delay_seconds = (0.3, 0.3)
    making = simulated_broker.host.start(simulated_broker.broker.catalogue.create("t", 1, {}), "create")
    await simulated_cluster.wait_until(lambda: simulated_broker.broker.catalogue.find("t") is not None)
    await asyncio.sleep(0.1)  # its log is being made now
    await simulated_broker.host.start(simulated_broker.broker.cluster._replicas.settled(), "settled")
    assert 0 in simulated_broker.broker.catalogue.topic("t").led
    await making


@in_simulated_cluster(2)
async def test_the_last_in_sync_replica_stays_in_the_set_when_its_disk_fails(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2), min_insync_replicas="1")
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    simulated_cluster[1].host.disk.fail_next("sync", "*.log")
    assert (await send(simulated_cluster[1], "t", batch(b"b"))).error_code == StorageFailure.code
    await asyncio.sleep(3)
    assert simulated_cluster.record("t").isr == (1,)
    await simulated_cluster[1].restart()
    assert (await read_all(await simulated_cluster.wait_for_leader("t", 1), "t"))[0] == b"a"


# Logging


@in_simulated_cluster()
async def test_changed_leaders_are_logged_in_one_line_each(
    simulated_cluster: SimulatedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "headrace.broker.replication.replicas"):
        await simulated_cluster.create_topic("t", (1, 2))
        assert caplog.messages == [], "the first leaders of a new topic"
        other = simulated_cluster[1].broker.catalogue.nodes[2]
        await simulated_cluster.change_partition("t", lambda record: with_leader(record, other))
        await simulated_cluster.wait_until(lambda: simulated_cluster.leads(2, "t", 0) and len(caplog.messages) >= 2)
        assert sorted(caplog.messages) == [
            "leaderships gained count=1 partitions=t-0",
            "leaderships lost count=1 partitions=t-0",
        ]
