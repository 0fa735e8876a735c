"""Fetch without a session: the records, the limits, and the wait."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.broker_requests import (
    batch,
    fetch_request,
    fetched_partitions,
    offsets_and_values,
    produce,
    produce_request,
    read_all,
    send,
    values,
)
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.broker.fetch import fetch
from headrace.broker.fetch.fetched_partition import FetchedPartition
from headrace.model.errors import (
    CorruptMessage,
    FencedLeaderEpoch,
    FetchSessionIdNotFound,
    NotLeader,
    OffsetOutOfRange,
    StaleBrokerEpoch,
    StorageFailure,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedCompressionType,
)
from headrace.storage.log.reading import LogSlice
from headrace.wire.batches.batch import parse_header
from headrace.wire.messages.fetch import FetchRequest, ReplicaState


@pytest.mark.parametrize("version", range(4, 13))
async def test_every_version_by_name_gets_a_response(simulated_broker: SimulatedBroker, version: int) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a", b"b")
    data = fetched_partitions(await simulated_broker.send(fetch_request({("t", 0): 0}), version))["t", 0]
    assert values(data.records) == [b"a", b"b"]
    assert (data.error_code, data.high_watermark, data.last_stable_offset) == (0, 2, 2)
    assert data.aborted_transactions is None


@pytest.mark.parametrize("version", range(13, 19))
async def test_every_version_by_id_gets_a_response(simulated_broker: SimulatedBroker, version: int) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a")
    topic_id = simulated_broker.broker.catalogue.topic("t").id
    data = fetched_partitions(await simulated_broker.send(fetch_request({(topic_id, 0): 0}), version))[topic_id, 0]
    assert values(data.records) == [b"a"]


async def test_read_committed_gets_an_empty_list_of_aborted_transactions(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    request = fetch_request({("t", 0): 0})
    request.isolation_level = 1
    assert fetched_partitions(await simulated_broker.send(request, 11))["t", 0].aborted_transactions == []


async def test_readers_too_old_for_zstd_get_an_error(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", compression_type="zstd")
    await produce(simulated_broker, "t", b"a")
    codes = [
        fetched_partitions(await simulated_broker.send(fetch_request({("t", 0): 0}), version))["t", 0].error_code
        for version in (9, 10)
    ]
    assert codes == [UnsupportedCompressionType.code, 0]


async def test_errors_belong_to_their_partition(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a")
    request = fetch_request({("t", 0): 0, ("t", 1): 0, ("missing", 0): 0, ("t", 7): 0}, max_wait_ms=60_000)
    found = fetched_partitions(await simulated_broker.send(request, 11))
    assert {key: data.error_code for key, data in found.items()} == {
        ("t", 0): 0,
        ("t", 1): UnknownTopicOrPartition.code,
        ("missing", 0): UnknownTopicOrPartition.code,
        ("t", 7): UnknownTopicOrPartition.code,
    }
    assert found["missing", 0].high_watermark == -1
    unknown = UUID(int=5)
    assert (
        fetched_partitions(await simulated_broker.send(fetch_request({(unknown, 0): 0}), 13))[unknown, 0].error_code
        == UnknownTopicId.code
    )


@pytest.mark.parametrize(
    ("offset", "in_range"), [(0, False), (1, False), (2, True), (3, True), (4, True), (5, False), (-1, False)]
)
async def test_offsets_out_of_range_are_rejected_at_once(
    simulated_broker: SimulatedBroker, offset: int, in_range: bool
) -> None:
    await simulated_broker.create_topic("t")
    for value in (b"a", b"b", b"c", b"d"):
        await produce(simulated_broker, "t", value)
    await simulated_broker.partition("t").log.advance_start(2)
    data = fetched_partitions(await simulated_broker.send(fetch_request({("t", 0): offset}), 11))["t", 0]
    assert data.error_code == (0 if in_range else OffsetOutOfRange.code)


async def test_an_offset_inside_a_batch_gives_the_whole_batch(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a", b"b", b"c")
    await produce(simulated_broker, "t", b"d")
    data = fetched_partitions(await simulated_broker.send(fetch_request({("t", 0): 1}), 11))["t", 0]
    assert offsets_and_values(data.records) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


async def test_nothing_above_the_high_watermark_is_returned(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a")
    pending = simulated_broker.begin_send(produce_request({("t", 0): batch(b"b")}), 9)
    await simulated_broker.run_ready_tasks()
    assert simulated_broker.partition("t").log.end_offset == 2
    data = fetched_partitions(await simulated_broker.send(fetch_request({("t", 0): 0}), 11))["t", 0]
    assert (values(data.records), data.high_watermark) == ([b"a"], 1)
    above = fetched_partitions(await simulated_broker.send(fetch_request({("t", 0): 2}), 11))["t", 0]
    assert (above.error_code, values(above.records)) == (0, [])
    await pending


# How much


async def test_responses_contain_whole_batches_up_to_the_partitions_limit(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    for number in range(10):
        await produce(simulated_broker, "t", b"%d" % number)
    size = len(batch(b"0"))
    data = fetched_partitions(
        await simulated_broker.send(fetch_request({("t", 0): 0}, partition_max_bytes=3 * size + 10), 11)
    )["t", 0]
    assert values(data.records) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("limits", [{"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}])
async def test_the_first_batch_is_returned_regardless_of_its_size(
    simulated_broker: SimulatedBroker, limits: dict[str, int]
) -> None:
    await simulated_broker.create_topic("t", 3)
    for partition in (1, 2):
        await produce(simulated_broker, "t", b"x" * 1000, partition=partition)
    request = fetch_request({("t", 0): 0, ("t", 1): 0, ("t", 2): 0}, **limits)  # type: ignore[arg-type]
    found = fetched_partitions(await simulated_broker.send(request, 11))
    assert [len(values(data.records)) for data in found.values()] == [0, 1, 0]
    assert [data.error_code for data in found.values()] == [0, 0, 0]


async def test_max_bytes_is_shared_by_all_partitions(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 4)
    for partition in range(4):
        await produce(simulated_broker, "t", b"x" * 1000, partition=partition)
    size = len(batch(b"x" * 1000))
    request = fetch_request({("t", index): 0 for index in range(4)}, max_bytes=2 * size)
    found = fetched_partitions(await simulated_broker.send(request, 11))
    assert [len(values(data.records)) for data in found.values()] == [1, 1, 0, 0]


async def test_a_fetch_of_many_partitions_keeps_few_files_open(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A fetch of 2,000 partitions used up 1,024 descriptors.
    monkeypatch.setattr(fetch, "_PINNED_MAX", 2)
    keeps_file_open: list[bool] = []
    count = FetchedPartition.count

    def look_and_count(reading: FetchedPartition) -> None:
        keeps_file_open.append(isinstance(reading.data.records, LogSlice))
        count(reading)

    monkeypatch.setattr(FetchedPartition, "count", look_and_count)
    await simulated_broker.create_topic("t", 5)
    for partition in range(5):
        await produce(simulated_broker, "t", b"%d" % partition, partition=partition)
    found = fetched_partitions(
        await simulated_broker.send(fetch_request({("t", partition): 0 for partition in range(5)}), 11)
    )
    assert [values(found["t", partition].records) for partition in range(5)] == [[b"%d" % one] for one in range(5)]
    assert keeps_file_open == [True, True, False, False, False]


async def test_the_brokers_limit_overrides_the_clients(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(fetch_max_bytes="2000")
    await simulated_broker.create_topic("t")
    for _ in range(5):
        await produce(simulated_broker, "t", b"x" * 900)
    assert len(await read_all(simulated_broker, "t")) == 2


# How long


async def test_a_fetch_waits_until_there_is_something(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    pending = simulated_broker.begin_send(fetch_request({("t", 0): 0}, max_wait_ms=60_000), 11)
    await simulated_broker.pass_time(10)
    assert not pending.done()
    await produce(simulated_broker, "t", b"a")
    async with asyncio.timeout(0.1):
        assert values(fetched_partitions(await pending)["t", 0].records) == [b"a"]


async def test_a_fetch_waits_at_most_max_wait_and_then_returns_every_partition(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", 2)
    await produce(simulated_broker, "t", b"a")
    began = simulated_broker.world.loop.time()
    found = fetched_partitions(
        await simulated_broker.send(fetch_request({("t", 0): 1, ("t", 1): 0}, max_wait_ms=500), 11)
    )
    assert simulated_broker.world.loop.time() - began == pytest.approx(0.5, abs=0.01)
    assert {key: (data.high_watermark, values(data.records)) for key, data in found.items()} == {
        ("t", 0): (1, []),
        ("t", 1): (0, []),
    }


async def test_a_fetch_waits_for_min_bytes(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    size = len(batch(b"x" * 100))
    request = fetch_request({("t", 0): 0, ("t", 1): 0}, max_wait_ms=60_000, min_bytes=3 * size)
    pending = simulated_broker.begin_send(request, 11)
    await produce(simulated_broker, "t", b"x" * 100)
    await produce(simulated_broker, "t", b"x" * 100, partition=1)
    await simulated_broker.pass_time(1)
    assert not pending.done()
    await produce(simulated_broker, "t", b"x" * 100)
    async with asyncio.timeout(0.1):
        found = fetched_partitions(await pending)
    assert [len(values(data.records)) for data in found.values()] == [2, 1]


async def test_min_bytes_0_does_not_wait(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    began = simulated_broker.world.loop.time()
    await simulated_broker.send(fetch_request({("t", 0): 0}, max_wait_ms=60_000, min_bytes=0), 11)
    assert simulated_broker.world.loop.time() - began < 0.01


async def test_a_topic_that_is_deleted_ends_the_wait(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    pending = simulated_broker.begin_send(fetch_request({("t", 0): 0}, max_wait_ms=60_000), 11)
    await simulated_broker.pass_time(1)
    await simulated_broker.delete_topic("t")
    async with asyncio.timeout(0.1):
        assert fetched_partitions(await pending)["t", 0].error_code == UnknownTopicOrPartition.code


async def test_waiting_fetches_get_a_response_when_the_broker_stops(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    pending = [simulated_broker.begin_send(fetch_request({("t", 0): 0}, max_wait_ms=60_000), 11) for _ in range(3)]
    await simulated_broker.pass_time(1)
    simulated_broker.broker.complete_waiting_requests()
    async with asyncio.timeout(0.1):
        for one in pending:
            assert fetched_partitions(await one)["t", 0].error_code == 0
        await simulated_broker.send(fetch_request({("t", 0): 0}, max_wait_ms=60_000), 11)


async def test_no_watcher_is_left_after_the_response(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    pending = simulated_broker.begin_send(fetch_request({("t", 0): 0}, max_wait_ms=60_000), 11)
    await simulated_broker.run_ready_tasks()
    assert len(simulated_broker.partition("t")._watchers) == 1
    pending.cancel()
    await simulated_broker.run_ready_tasks()
    assert not simulated_broker.partition("t")._watchers
    await simulated_broker.send(fetch_request({("t", 0): 0}, max_wait_ms=100), 11)
    assert not simulated_broker.partition("t")._watchers
    assert not simulated_broker.broker.fetch._delayed_fetches


# Epochs


async def test_old_or_unknown_leader_epochs_are_rejected(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a")
    await simulated_broker.restart()
    await simulated_broker.restart()
    assert simulated_broker.partition("t").leader_epoch == 2
    for epoch, code in (
        (-1, 0),
        (0, FencedLeaderEpoch.code),
        (1, FencedLeaderEpoch.code),
        (2, 0),
        (3, UnknownLeaderEpoch.code),
    ):
        request = fetch_request({("t", 0): 0}, current_leader_epoch=epoch)
        assert fetched_partitions(await simulated_broker.send(request, 11))["t", 0].error_code == code


async def test_a_diverging_reader_gets_the_diverging_epoch(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a", b"b")
    await simulated_broker.restart()
    await produce(simulated_broker, "t", b"c")

    async def diverging(offset: int, epoch: int) -> tuple[int, int] | None:
        request = fetch_request({("t", 0): offset}, max_wait_ms=60_000, last_fetched_epoch=epoch)
        data = fetched_partitions(await simulated_broker.send(request, 12))["t", 0]
        assert data.error_code == 0
        if data.diverging_epoch is None:
            return None
        assert values(data.records) == []
        return data.diverging_epoch.epoch, data.diverging_epoch.end_offset

    assert await diverging(2, 0) is None
    assert await diverging(0, 1) is None
    assert await diverging(3, 0) == (0, 2)


# Cold bytes


async def test_records_recovered_at_the_start_are_verified_and_served(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    for partition in (0, 1):
        await produce(simulated_broker, "t", b"old", partition=partition)
    await simulated_broker.restart()
    request = fetch_request({("t", 0): 0, ("t", 1): 0})
    found = fetched_partitions(await simulated_broker.send(request, 11))
    assert [values(data.records) for data in found.values()] == [[b"old"], [b"old"]]


async def test_bytes_that_are_only_guessed_at_do_not_end_the_wait_for_more(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"old")
    await simulated_broker.restart()
    request = fetch_request({("t", 0): 0}, min_bytes=10_000, max_wait_ms=60_000)
    pending = simulated_broker.begin_send(request, 11)
    await simulated_broker.pass_time(1)
    assert not pending.done()
    await produce(simulated_broker, "t", b"x" * 10_000)
    async with asyncio.timeout(0.1):
        assert len(values(fetched_partitions(await pending)["t", 0].records)) == 2


async def test_a_damaged_partition_returns_an_error_and_others_are_served(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    for partition in (0, 1):
        await produce(simulated_broker, "t", b"old", partition=partition)
    topic_id = simulated_broker.partition("t").topic_id
    await simulated_broker.close()
    simulated_broker.host.disk.flip_bit(f"/data/logs/{topic_id.hex}-0/{0:020d}.log", 70)
    await simulated_broker.open(log_segment_bytes="1000000")
    found = fetched_partitions(await simulated_broker.send(fetch_request({("t", 0): 0, ("t", 1): 0}), 11))
    assert found["t", 0].error_code in (CorruptMessage.code, StorageFailure.code)
    assert values(found["t", 1].records) == [b"old"]
    again = fetched_partitions(await simulated_broker.send(fetch_request({("t", 0): 5}), 11))
    assert again["t", 0].error_code == StorageFailure.code, "not out of range: a client would jump over the damage"


async def test_a_fetch_during_a_swap_of_compacted_segments_does_not_look_like_the_end_of_the_log(
    simulated_broker: SimulatedBroker,
) -> None:
    """A scan takes a response without records, below the high watermark, for the end of its range."""
    await simulated_broker.create_topic("t", 2, cleanup_policy="compact", segment_bytes="400")
    await send(simulated_broker, "t", batch(b"read first", key=b"k"), partition=0)
    for number in range(30):
        await send(simulated_broker, "t", batch(b"%d" % number, key=b"%d" % (number % 5)), partition=1)
    disk, log = simulated_broker.host.disk, simulated_broker.partition("t", 1).log
    disk.cold_chance = 1.0
    disk.delay_seconds = (5.0, 5.0)
    fetch = simulated_broker.begin_send(fetch_request({("t", 0): 0, ("t", 1): 7}), 11)
    await simulated_broker.run_ready_tasks(1)
    disk.delay_seconds = (0.0, 0.0)
    assert await simulated_broker.host.start(simulated_broker.broker.store.cleaner.clean(log), "clean")
    assert not fetch.done()
    found = fetched_partitions(await fetch)
    assert [data.error_code for data in found.values()] == [0, 0]
    assert offsets_and_values(found["t", 1].records)[0][0] >= 7


async def test_a_cold_read_that_ends_after_the_leadership_returns_not_leader(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a")
    partition = simulated_broker.partition("t")
    simulated_broker.host.disk.cold_chance = 1.0
    fetch = simulated_broker.begin_send(fetch_request({("t", 0): 0}), 11)
    await simulated_broker.run_ready_tasks(1)
    partition.follow(partition.leader_epoch + 1)
    assert fetched_partitions(await fetch)["t", 0].error_code == NotLeader.code


async def test_a_fetch_that_is_cancelled_while_it_reads_from_the_disk_leaves_nothing_pinned(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", 2)
    await produce(simulated_broker, "t", b"old", partition=1)
    await simulated_broker.restart()
    await produce(simulated_broker, "t", b"new", partition=0)
    pending = simulated_broker.begin_send(fetch_request({("t", 0): 0, ("t", 1): 0}), 11)
    await simulated_broker.run_ready_tasks(1)
    pending.cancel()
    await simulated_broker.pass_time(1)
    assert pending.cancelled()
    simulated_broker.check()


async def test_metrics_count_the_bytes_that_were_sent(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a")
    size = len(batch(b"a"))
    counts = simulated_broker.broker.catalogue.topic("t").counts
    pending = simulated_broker.begin_send(fetch_request({("t", 0): 0}, min_bytes=size + 1, max_wait_ms=1000), 11)
    await simulated_broker.run_ready_tasks()
    assert counts.bytes_out == 0
    await pending
    assert (counts.fetches, counts.bytes_out) == (1, size)
    await simulated_broker.send(fetch_request({("t", 0): 99}), 11)
    assert (counts.fetches, counts.failed_fetches) == (1, 1)


async def test_records_are_returned_as_stored(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a", b"b", producer_id=3, producer_epoch=1, base_sequence=0)
    data = fetched_partitions(await simulated_broker.send(fetch_request({("t", 0): 0}), 11))["t", 0]
    header = parse_header(data.records)
    assert (header.base_offset, header.leader_epoch, header.producer_id) == (0, 0, 3)


async def copy(
    simulated_cluster: SimulatedCluster,
    node_id: int,
    offset: int,
    *,
    broker_epoch: int = 1,
    leader_epoch: int = 0,
    last_epoch: int = -1,
) -> Any:
    """Fetch from broker 1 as a follower does."""
    topic_id = simulated_cluster[1].broker.catalogue.topic("t").id
    request = fetch_request({(topic_id, 0): offset}, current_leader_epoch=leader_epoch, last_fetched_epoch=last_epoch)
    request.replica_state = ReplicaState(replica_id=node_id, replica_epoch=broker_epoch)
    return fetched_partitions(await simulated_cluster[1].send(request, 17))[topic_id, 0]


@in_simulated_cluster()
async def test_only_followers_get_uncommitted_records(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster.isolate(1)
    simulated_cluster[1].begin_send(produce_request({("t", 0): batch(b"b")}), 9)
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(1, "t").log.end_offset == 2)
    assert await read_all(simulated_cluster[1], "t") == [b"a"]
    assert values((await copy(simulated_cluster, 2, 1, last_epoch=0)).records) == [b"b"]


@in_simulated_cluster()
async def test_a_follower_fetch_counts_only_in_the_current_epoch(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.move_leadership("t", 2)
    await simulated_cluster.move_leadership("t", 1)
    simulated_cluster.isolate(1)
    assert (await copy(simulated_cluster, 2, 1, leader_epoch=0)).error_code == FencedLeaderEpoch.code
    assert (await copy(simulated_cluster, 2, 1, leader_epoch=3)).error_code == UnknownLeaderEpoch.code
    in_sync = simulated_cluster.replica(1, "t").in_sync
    assert in_sync is not None
    assert (await copy(simulated_cluster, 2, 1, leader_epoch=2, last_epoch=0)).error_code == 0
    assert in_sync.lag()[2] == 1


@in_simulated_cluster()
async def test_a_fetcher_without_a_replica_or_with_an_old_broker_epoch_is_rejected(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    assert (await copy(simulated_cluster, 3, 1)).error_code == UnknownLeaderEpoch.code, (
        "the leader may not have heard of a move yet"
    )
    assert (await copy(simulated_cluster, 9, 1)).error_code == UnknownLeaderEpoch.code
    await simulated_cluster[2].restart()
    await simulated_cluster.wait_until_in_sync("t")
    await produce(simulated_cluster[1], "t", b"b")
    assert (await copy(simulated_cluster, 2, 2, broker_epoch=1, last_epoch=0)).error_code == StaleBrokerEpoch.code
    assert (await copy(simulated_cluster, 2, 2, broker_epoch=-1, last_epoch=0)).error_code == StaleBrokerEpoch.code


@in_simulated_cluster()
async def test_a_diverging_follower_gets_the_diverging_epoch_and_its_offset_is_ignored(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster.isolate(1)
    in_sync = simulated_cluster.replica(1, "t").in_sync
    assert in_sync is not None
    lag = dict(in_sync.lag())
    data = await copy(simulated_cluster, 2, 5, last_epoch=0)
    assert (data.error_code, data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, 0, 1)
    assert not data.records
    assert in_sync.lag() == lag
    assert (await copy(simulated_cluster, 2, 5)).error_code == OffsetOutOfRange.code, (
        "out of range, if it says nothing of its history"
    )
    assert in_sync.lag() == lag


@in_simulated_cluster(max_incremental_fetch_session_cache_slots="1")
async def test_a_follower_gets_a_session_although_consumers_have_them_all(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    sessions = simulated_cluster[1].broker.fetch._sessions
    for session_id in list(sessions._sessions):
        sessions.close(session_id)
    await simulated_cluster[1].send(fetch_request({("t", 0): 0}, session_epoch=0), 11)
    await asyncio.sleep(2)
    assert [session.privileged for session in sessions._sessions.values()] == [True]


async def test_requests_before_the_newest_session_of_a_follower_are_ignored(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")

    def of_follower(session_id: int, epoch: int) -> FetchRequest:
        request = fetch_request({("t", 0): 0}, session_id=session_id, session_epoch=epoch)
        request.replica_id = 2
        return request

    first = (await simulated_broker.send(of_follower(0, 0), 12)).session_id
    second = (await simulated_broker.send(of_follower(0, 0), 12)).session_id
    assert first != second
    assert (await simulated_broker.send(of_follower(first, 1), 12)).error_code == FetchSessionIdNotFound.code
    assert (await simulated_broker.send(of_follower(second, 1), 12)).error_code == 0
