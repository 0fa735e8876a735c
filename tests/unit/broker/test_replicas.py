"""The replicas of a broker: made, led, followed, given up and replaced as the partitions' records say."""

from __future__ import annotations

import asyncio
import errno

import pytest
from msgspec.structs import replace
from tests.unit.broker.asking import batch, produce, produce_request, read_all, send
from tests.unit.broker.town import Town, in_town

from headrace.machines.leadership import elected
from headrace.machines.reassignment import begin, cancel
from headrace.model.errors import NotLeader, StorageFailure
from headrace.model.partition_record import PartitionRecord
from headrace.model.topic_record import TopicRecord
from headrace.registry.interface import Delete, Entry
from headrace.registry.partitions import encode_partition, partition_key
from headrace.registry.topics import topic_key
from headrace.runtime.disk import DiskFull
from headrace.storage.log import Log
from headrace.storage.scan import BadBatch
from headrace.storage.topic_files import read_topic_files
from headrace.testkit.registry import SimRegistry

NOT_LEADER, STORAGE_FAILURE = 6, 56


def folders(town: Town, node_id: int) -> list[str]:
    return town[node_id].host.disk.list("/data/logs")


def damage(log: Log) -> None:
    """As a reader finds it."""
    log.quarantine(log.active, BadBatch(0, "its bits have rotted"), 0)


# Making and giving up


@in_town()
async def test_a_topic_has_logs_where_its_replicas_are_and_nowhere_else(town: Town) -> None:
    await town.make_topic("t", (1, 2), (2, 3), by=3)
    topic_id = town[1].broker.catalogue.topic("t").id.hex
    await town.until(lambda: all(folders(town, node_id) for node_id in (1, 2, 3)))
    found = {node_id: [name.removeprefix(topic_id) for name in folders(town, node_id)] for node_id in (1, 2, 3)}
    assert found == {1: ["-0"], 2: ["-0", "-1"], 3: ["-1"]}
    assert [(town.leads(1, "t", 0), town.leads(2, "t", 1))] == [(True, True)]


@in_town()
async def test_a_replica_that_is_moved_is_copied_and_the_old_one_removed(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    await town.change("t", lambda record: begin(record, (3, 2)))
    await town.until(lambda: not town.record("t").removing)
    leader = await town.until_led("t")
    assert set(town.record("t").isr) == {2, 3}
    await town.until(lambda: not folders(town, 1))
    assert await read_all(leader, "t") == [b"a"]
    assert town[1].broker.catalogue.topic("t").replicas == {}


@in_town()
async def test_a_replica_that_is_given_up_while_it_is_copied_leaves_nothing_behind(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a" * 100_000)
    town[3].host.disk.delay_seconds = (0.2, 0.2)  # its flushes take long
    await town.change("t", lambda record: begin(record, (1, 2, 3)))
    await town.until(lambda: town[3].broker.catalogue.topic("t").local(0) is not None)
    await town.until(lambda: town.replica(3, "t").log.end_offset == 1)
    assert town.replica(3, "t").log.flushed_offset == 0
    await town.change("t", cancel)
    await town.until(lambda: not folders(town, 3))
    assert await produce(town[1], "t", b"b") == 1
    await town.until_in_sync("t", 1, 2)
    await town.change("t", lambda record: begin(record, (1, 2, 3)))
    await town.until_in_sync("t", 1, 2, 3)
    await town.until_alike("t")


def strays(town: Town, node_id: int) -> list[str]:
    disk = town[node_id].host.disk
    return [name for name in disk.list("/data/stray") if "-" in name] if disk.exists("/data/stray") else []


@in_town()
async def test_at_the_start_logs_of_deleted_topics_are_deleted_and_other_unknown_logs_become_stray(town: Town) -> None:
    await town.make_topic("gone", (1, 2))
    await town.make_topic("moved", (1, 2))
    moved = town[1].broker.catalogue.topic("moved").id
    await town.until(lambda: len(folders(town, 2)) == 2)
    town[2].kill()
    await town[1].delete_topic("gone")
    await town.change("moved", lambda record: replace(record, replicas=(1,), isr=(1,)))
    await town.open(2)
    assert (folders(town, 2), strays(town, 2)) == ([], [f"{moved.hex}-0"])


@in_town(1)
async def test_logs_of_topics_that_an_older_registry_does_not_know_are_kept_and_come_back_with_the_newer_one(
    town: Town,
) -> None:
    await town.make_topic("old", (1,))
    older = dict(town.truth.entries)
    await town.make_topic("new", (1,))
    topic_id = town[1].broker.catalogue.topic("new").id
    await produce(town[1], "new", b"a")
    town[1].kill()
    newer = dict(town.truth.entries)
    town.truth.entries = {**older}
    town.forget_controllers()
    await town.open(1)
    assert strays(town, 1) == [f"{topic_id.hex}-0"]
    town[1].kill()
    town.truth.entries = {**newer}
    town.forget_controllers()
    await town.open(1)
    assert strays(town, 1) == []
    await town.until_led("new", 1)
    assert await read_all(town[1], "new") == [b"a"]


@pytest.mark.parametrize("is_deleted", [False, True])
@in_town(1)
async def test_logs_of_a_topic_that_vanishes_under_a_running_broker_are_kept_unless_it_was_deleted(
    town: Town, is_deleted: bool
) -> None:
    """As when the registry's servers are replaced by an older copy."""
    await town.make_topic("t", (1,))
    await produce(town[1], "t", b"a")
    topic_id = town[1].broker.catalogue.topic("t").id
    if is_deleted:
        await town[1].delete_topic("t")
    else:
        entry = town.truth.entries[topic_key("t")]
        await SimRegistry(town.truth).commit([Delete(entry.key, entry.version)])
    await town.until(lambda: not folders(town, 1))
    assert strays(town, 1) == ([] if is_deleted else [f"{topic_id.hex}-0"])
    if not is_deleted:
        town[1].kill()
        places = {key: one for key, one in town.truth.entries.items() if topic_id.hex in key}
        assert not places, "the controller has removed the partitions of the topic that is gone"
        town.truth.entries[entry.key] = entry
        town.truth.entries[partition_key(topic_id, 0)] = Entry(
            partition_key(topic_id, 0), encode_partition(PartitionRecord(replicas=(1,), isr=(1,))), 0
        )
        await town.open(1)
        await town.until_led("t", 1)
        assert await read_all(town[1], "t") == [b"a"]


@in_town()
async def test_the_record_of_a_topic_is_kept_beside_its_logs_and_follows_its_changes(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    catalogue = town[1].broker.catalogue
    topic_id = catalogue.topic("t").id

    def records(node_id: int) -> list[TopicRecord]:
        return list(read_topic_files(town[node_id].host.disk, "/data/topics").values())

    await town.until(lambda: records(1) == records(2) == [catalogue.topic("t").record])
    await town[1].host.start(catalogue.change_configs("t", lambda _: {"segment.bytes": "4096"}), "alter")
    await town[1].host.start(catalogue.add_partitions("t", 2, assignment=[(1, 2)]), "grow")
    await town.until(lambda: records(1) == records(2) == [catalogue.topic("t").record])
    assert (records(1)[0].configs, records(1)[0].partitions) == ({"segment.bytes": "4096"}, 2)
    town[2].kill()
    town[2].host.disk.remove(f"/data/topics/{topic_id.hex}.json")  # as a folder of the previous version
    await town.open(2)
    await town.until(lambda: records(2) == records(1))
    await town[1].delete_topic("t")
    await town.until(lambda: records(1) == records(2) == [])


@in_town()
async def test_a_topic_that_is_deleted_and_made_again_in_the_midst_of_everything_is_the_new_one(town: Town) -> None:
    await town.make_topic("t", (1, 2, 3))
    sending = town[1].begin(produce_request({("t", 0): batch(b"old")}), 9)
    await town[1].turn()
    await town[2].delete_topic("t")
    await town.make_topic("t", (2, 3, 1), by=2)
    await sending
    assert await produce(town[2], "t", b"new") == 0
    await town.until_alike("t")
    assert await read_all(town[2], "t") == [b"new"]
    await town.until(lambda: all(len(folders(town, node_id)) == 1 for node_id in (1, 2, 3)))


@in_town()
async def test_a_topic_that_is_deleted_while_its_logs_are_made_leaves_none(town: Town) -> None:
    town[3].host.disk.delay_seconds = (0.3, 0.3)
    making = town[1].host.start(town[1].broker.catalogue.create("t", 1, {}, assignment=[(1, 3)]), "create")
    await town.until(lambda: town[1].broker.catalogue.find("t") is not None)
    await town[1].delete_topic("t")
    await asyncio.wait([making])
    await asyncio.sleep(3)
    assert (folders(town, 1), folders(town, 3)) == ([], [])


# Leading and following


@in_town()
async def test_the_same_broker_that_is_elected_again_leads_in_a_new_epoch(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    leads: list[int] = []
    resigns: list[int] = []
    town[1].broker.catalogue.on_lead.append(lambda partition: leads.append(partition.leader_epoch))
    town[1].broker.catalogue.on_resign.append(lambda partition: resigns.append(partition.leader_epoch))
    town.isolate(1)  # so that nothing is committed
    waiting = town[1].begin(produce_request({("t", 0): batch(b"a")}), 9)
    await town[1].turn()
    node = town[1].broker.catalogue.nodes[1]
    await town.change("t", lambda record: elected(record, node))
    answer = (await waiting).responses[0].partition_responses[0]
    assert answer.error_code == NOT_LEADER, "its epoch is over: nobody knows whether it will be committed"
    await town.until(lambda: town.replica(1, "t").leader_epoch == 1 and town.leads(1, "t"))
    assert (leads, resigns) == ([1], [0])
    town.heal()
    assert await produce(town[1], "t", b"b") == 1
    await town.until_alike("t")
    assert town.replica(2, "t").log.epochs.entries() == ((0, 0), (1, 1))


@in_town()
async def test_an_epoch_that_is_over_before_the_disk_is_ready_is_never_led(town: Town) -> None:
    """A lead waits for whoever cuts the log; the record may change meanwhile."""
    await town.make_topic("t", (1, 2))
    await town.until(lambda: town[2].broker.catalogue.topic("t").local(0) is not None)
    follower = town.replica(2, "t")
    await follower.changing.acquire()
    first = town[1].broker.catalogue.nodes[1]
    second = town[2].broker.catalogue.nodes[2]
    await town.change("t", lambda record: elected(record, second))
    await asyncio.sleep(1)
    assert not follower.is_leader
    await town.change("t", lambda record: elected(record, first))
    await town.until_led("t", 1)
    follower.changing.release()
    await asyncio.sleep(1)
    assert (follower.is_leader, follower.leader_epoch) == (False, 2)
    assert await produce(town[1], "t", b"a") == 0


@in_town()
async def test_a_lead_ends_at_once_also_when_the_disk_is_busy(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    partition = town.replica(1, "t")
    await partition.changing.acquire()
    second = town[2].broker.catalogue.nodes[2]
    await town.change("t", lambda record: elected(record, second))
    await town.until(lambda: town[1].broker.catalogue.place("t", 0).leader == 2)
    with pytest.raises(NotLeader):
        town[1].partition("t")
    assert not partition.is_leader
    partition.changing.release()
    await town.until_led("t", 2)


@in_town()
async def test_only_the_leader_deletes_what_is_old(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await town.until(lambda: town[2].broker.catalogue.topic("t").local(0) is not None)
    assert (town.replica(1, "t").log.deletes_old, town.replica(2, "t").log.deletes_old) == (True, False)
    await town.move_lead("t", 2)
    await town.until(lambda: not town.replica(1, "t").log.deletes_old)
    assert town.replica(2, "t").log.deletes_old


@in_town()
async def test_changed_configs_reach_the_logs_of_all_replicas(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    changing = town[3].broker.catalogue.change_configs("t", lambda _: {"segment.bytes": "4096"})
    await town[3].host.start(changing, "change")
    await town.until(lambda: all(town.replica(node_id, "t").log.config.segment_bytes == 4096 for node_id in (1, 2)))
    assert town.replica(2, "t").config.segment_bytes == 4096


# When the disk does not do what it is asked to


@in_town()
async def test_a_replica_that_cannot_be_made_does_not_keep_the_broker_from_leading_others(town: Town) -> None:
    await town.make_topic("well", (1, 2))
    await town.until_in_sync("well")
    for _ in range(100):
        town[2].host.disk.fail_next("make", "/data/logs/*", errno.ENOSPC)
    await town.make_topic("full", (1, 2))
    await asyncio.sleep(1)
    assert town[2].broker.catalogue.topic("full").local(0) is None
    town[1].kill()
    await town.until_led("well", 2)
    assert await produce(town[2], "well", b"a") == 0


@in_town()
async def test_a_replica_that_could_not_be_made_is_made_when_there_is_room(town: Town) -> None:
    for _ in range(3):
        town[2].host.disk.fail_next("make", "/data/logs/*", errno.ENOSPC)
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    await town.until_in_sync("t")
    await town.until(lambda: town.replica(2, "t").high_watermark == 1)


@in_town()
async def test_a_topic_whose_logs_cannot_be_made_where_it_is_asked_for_is_refused_and_is_no_more(town: Town) -> None:
    town[1].host.disk.fail_next("make", "/data/logs/*", errno.ENOSPC)
    with pytest.raises(DiskFull):
        await town.make_topic("t", (1, 2), by=1)
    await town.until(lambda: town[2].broker.catalogue.find("t") is None)
    await town.make_topic("t", (1, 2), by=1)
    assert await produce(town[1], "t", b"a") == 0


@in_town()
async def test_a_log_that_cannot_be_removed_is_removed_by_the_next_start_at_the_latest(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await town.until(lambda: bool(folders(town, 2)))
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    town[2].host.disk.fail_next("rename", "/data/logs/*", errno.EIO)
    await town[1].delete_topic("t")
    await town.make_topic("next", (2, 1), by=2)
    assert await produce(town[2], "next", b"a") == 0, "it is in nobody's way"
    await town[2].restart()
    assert len(folders(town, 2)) == 1


@in_town()
async def test_a_leader_whose_disk_fails_is_replaced_and_nothing_is_lost(town: Town) -> None:
    await town.make_topic("t", min_insync_replicas="2")
    await produce(town[1], "t", b"a")
    town[1].host.disk.fail_next("sync", "*.log")
    answer = await send(town[1], "t", batch(b"b"))
    assert answer.error_code == STORAGE_FAILURE
    leader = await town.until_led("t", 2)
    assert 1 not in town.record("t").isr
    assert await produce(leader, "t", b"c") > 0
    assert (await read_all(leader, "t"))[0] == b"a"
    await town[1].restart()
    await town.until_in_sync("t")
    await town.until_alike("t")


@in_town()
async def test_a_follower_whose_disk_fails_leaves_the_in_sync_set_at_once(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    town[2].host.disk.fail_next("sync", "*.log")
    assert await produce(town[1], "t", b"b") == 1
    await town.until_in_sync("t", 1, 3)
    assert town.leader("t") is town[1]
    await town[2].restart()
    await town.until_in_sync("t")


@in_town()
async def test_a_follower_whose_disk_is_full_goes_on_when_there_is_room_again(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    disk = town[2].host.disk
    capacity, disk.capacity_bytes = disk.capacity_bytes, disk._used_bytes
    answer = await town[1].ask(produce_request({("t", 0): batch(b"b")}, timeout_ms=1000), 9)
    assert answer.responses[0].partition_responses[0].error_code == 7, "it is still waited for"
    assert town.replica(2, "t").log.usable
    disk.capacity_bytes = capacity
    await town.until_alike("t")
    assert town.replica(2, "t").high_watermark == 2


# When a log is damaged


@in_town()
async def test_a_damaged_follower_leaves_the_in_sync_set_until_it_is_started_again(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a", b"b")
    await town.until_alike("t")
    damage(town.replica(2, "t").log)
    await town.until(lambda: 2 not in town.record("t").isr)
    path = town.replica(2, "t").log.active.path
    town[2].kill()
    town[2].host.disk.flip_bit(path, 70)
    await town.open(2)
    await town.until_in_sync("t")
    await town.until_alike("t")
    (kept, log) = sorted(folders(town, 2), key=len, reverse=True)
    assert kept.startswith(log), "what is left of it is kept for whoever wants to look at it"


@in_town()
async def test_a_damaged_leader_gives_its_lead_away_and_is_never_elected(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    damage(town.replica(1, "t").log)
    assert (await send(town[1], "t", batch(b"b"))).error_code != 0
    leader = await town.until_led("t", 2)
    assert await produce(leader, "t", b"c") == 1
    assert 1 not in (*town.record("t").isr, *town.record("t").elr)
    town[1].kill()
    await town.open(1)
    await town.until_in_sync("t")
    await town.until_alike("t")


@in_town()
async def test_a_log_that_is_found_damaged_at_the_start_is_struck_out_before_it_can_lead(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a", b"b")
    await town.until_alike("t")
    path = town.replica(2, "t").log.active.path
    for house in (town[1], town[2]):
        house.kill()
    town[2].host.disk.flip_bit(path, 70)
    await town.open(2)
    assert (town.record("t").isr, town.record("t").leader) == ((1,), -1)
    assert town.replica(2, "t").log.quarantined is not None, "there is nobody to copy from yet"
    await town.open(1)
    await town.until_in_sync("t")
    assert await read_all(town.leader("t"), "t") == [b"a", b"b"]
    assert town.replica(2, "t").log.quarantined is None


@in_town()
async def test_a_log_that_is_missing_is_not_taken_for_an_empty_one(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    folder = town.replica(2, "t").log.folder
    for house in (town[1], town[2]):
        house.kill()
    town[2].host.disk.remove_tree(folder)
    await town.open(2)
    assert town.record("t").leader == -1
    await town.open(1)
    await town.until_in_sync("t")
    assert await read_all(town.leader("t"), "t") == [b"a"]


@in_town()
async def test_the_last_copy_is_kept_in_its_place_however_damaged(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    town[2].kill()
    await town.until_in_sync("t", 1)
    damaged = town.replica(1, "t")
    damage(damaged.log)
    await town.until(lambda: town.record("t").leader == -1)
    await asyncio.sleep(2)
    assert town.record("t").isr == ()
    assert town.replica(1, "t") is damaged
    assert len(folders(town, 1)) == 1


@in_town(1)
async def test_waiting_for_the_replicas_ends_with_what_stands_in_the_way(town: Town) -> None:
    town[1].host.disk.fail_next("make", "/data/logs/*", errno.EIO)
    with pytest.raises(StorageFailure):
        await town.make_topic("t", (1,))
    assert town[1].broker.catalogue.find("t") is None


@in_town(1)
async def test_whoever_waits_for_the_replicas_waits_for_what_is_under_way_too(town: Town) -> None:
    house = town[1]
    house.host.disk.delay_seconds = (0.3, 0.3)
    making = house.host.start(house.broker.catalogue.create("t", 1, {}), "create")
    await town.until(lambda: house.broker.catalogue.find("t") is not None)
    await asyncio.sleep(0.1)  # its log is being made now
    await house.host.start(house.broker.cluster._replicas.settled(), "settled")
    assert 0 in house.broker.catalogue.topic("t").led
    await making


@in_town(2)
async def test_the_last_one_that_has_everything_keeps_its_place_when_its_disk_fails(town: Town) -> None:
    await town.make_topic("t", (1, 2), min_insync_replicas="1")
    await produce(town[1], "t", b"a")
    town[2].kill()
    await town.until_in_sync("t", 1)
    town[1].host.disk.fail_next("sync", "*.log")
    assert (await send(town[1], "t", batch(b"b"))).error_code == STORAGE_FAILURE
    await asyncio.sleep(3)
    assert town.record("t").isr == (1,)
    await town[1].restart()
    assert (await read_all(await town.until_led("t", 1), "t"))[0] == b"a"
