"""A follower copies the log of its leader, truncates diverged records, and reports its flushed offset."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.unit.broker.broker_requests import batch, produce, produce_request, read_all
from tests.unit.broker.simulated_cluster import SimulatedCluster, SimulatedClusterBroker, in_simulated_cluster

from headrace.broker.partition import Partition
from headrace.broker.replication.replica_fetcher import ReplicaFetcher
from headrace.machines.controller.leadership import elect_unclean, with_leader
from headrace.runtime.tasks import BackgroundTaskDied
from headrace.wire.batches.batch import assign_offset_and_epoch, parse_header
from headrace.wire.messages.fetch import EpochEndOffset, PartitionData


def append(partition: Partition, *values: bytes) -> None:
    """At the leader, without waiting for anybody."""
    data = memoryview(batch(*values))
    partition.append(data, parse_header(data), 0)


async def values(simulated_cluster: SimulatedCluster, node_id: int, topic: str = "t") -> list[bytes]:
    """What a replica serves when it leads."""
    await simulated_cluster.wait_until_in_sync(topic)
    await simulated_cluster.move_leadership(topic, node_id)
    replica = simulated_cluster.replica(node_id, topic)
    await simulated_cluster.wait_until(lambda: replica.high_watermark == replica.log.end_offset)
    found: list[bytes] = []
    while len(found) < replica.high_watermark:  # a response ends with a segment
        found += await read_all(simulated_cluster[node_id], topic, offset=len(found))
    return found


def epochs(simulated_cluster: SimulatedCluster, node_id: int) -> tuple[tuple[int, int], ...]:
    return simulated_cluster.replica(node_id, "t").log.epochs.entries()


async def failure(simulated_broker: SimulatedClusterBroker) -> BaseException | None:
    with suppress(TimeoutError, BackgroundTaskDied):
        async with asyncio.timeout(10):
            await simulated_broker.supervisor.failure()
    failed = simulated_broker.supervisor._first_failure
    return None if failed is None else failed.__cause__


# Copying


@in_simulated_cluster()
async def test_a_follower_has_the_same_bytes_and_high_watermark(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    for number in range(5):
        await produce(simulated_cluster[1], "t", b"%d" % number)
    await simulated_cluster.wait_until_identical("t")
    files = {
        simulated_cluster[node_id].host.disk.read(simulated_cluster.replica(node_id, "t").log.segments[0].path)
        for node_id in (1, 2, 3)
    }
    assert len(files) == 1


@in_simulated_cluster(2)
async def test_records_are_committed_only_when_the_follower_has_flushed_them(
    simulated_cluster: SimulatedCluster,
) -> None:
    """Its fetch offset is its promise: what lies below survives a power cut (I1)."""
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[2].host.disk.delay_seconds = (1.0, 1.0)  # of a flush
    sending = simulated_cluster[1].begin_send(produce_request({("t", 0): batch(b"b")}), 9)
    follower = simulated_cluster.replica(2, "t")
    await simulated_cluster.wait_until(lambda: follower.log.end_offset == 2)
    assert (follower.log.flushed_offset, simulated_cluster.replica(1, "t").high_watermark) == (1, 1)
    await simulated_cluster.wait_until(lambda: follower.log.flushed_offset == 2)
    assert (await sending).responses[0].partition_responses[0].error_code == 0
    for simulated_broker in simulated_cluster.up:
        simulated_broker.kill(keep_page_cache=False)
    await simulated_cluster.open()
    assert await read_all(await simulated_cluster.wait_for_leader("t"), "t") == [b"a", b"b"]


@in_simulated_cluster(2)
async def test_a_topic_without_flush_on_commit_does_not_wait_for_follower_flushes(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", flush_messages="1000")
    await produce(simulated_cluster[1], "t", b"first")  # the follower has noted its leader on its disk
    simulated_cluster[2].host.disk.delay_seconds = simulated_cluster[1].host.disk.delay_seconds = (5.0, 5.0)
    began = simulated_cluster.world.clock.monotonic()
    await produce(simulated_cluster[1], "t", b"a")
    assert simulated_cluster.world.clock.monotonic() - began < 3
    assert simulated_cluster.replica(2, "t").log.flushed_offset == 0


@in_simulated_cluster()
async def test_a_follower_verifies_fetched_batches(
    simulated_cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    taken = ReplicaFetcher._process
    spoilt = 0

    async def spoil(self: ReplicaFetcher, followed: object, data: object) -> None:
        nonlocal spoilt
        records = getattr(data, "records", None)
        if records and spoilt < 3:
            spoilt += 1
            records = bytearray(records)
            records[-1] ^= 1
            data.records = records  # type: ignore[attr-defined]
        await taken(self, followed, data)  # type: ignore[arg-type]

    monkeypatch.setattr(ReplicaFetcher, "_process", spoil)
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    assert spoilt == 3
    assert await values(simulated_cluster, 2) == [b"a"]


@in_simulated_cluster()
async def test_an_unavailable_leader_is_fetched_from_again_when_it_is_back(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    simulated_cluster.isolate(1)
    append(simulated_cluster.replica(1, "t"), b"a")
    await asyncio.sleep(20)
    assert simulated_cluster.replica(2, "t").log.end_offset == 0
    fetcher = simulated_cluster[2].broker.cluster._follower_fetchers._fetchers[1]
    assert fetcher._is_failing
    simulated_cluster.heal()
    await simulated_cluster.wait_until_identical("t")
    await simulated_cluster.wait_until(lambda: not fetcher._is_failing)


@in_simulated_cluster()
async def test_a_leader_without_the_session_gets_a_full_fetch(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    sessions = simulated_cluster[1].broker.fetch._sessions
    for session_id in list(sessions._sessions):
        sessions.close(session_id)
    assert await produce(simulated_cluster[1], "t", b"b") == 1
    await simulated_cluster.wait_until_identical("t")


# Where histories part


@in_simulated_cluster()
async def test_uncommitted_records_are_truncated_where_the_new_leaders_log_diverges(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster.isolate(1)
    append(simulated_cluster.replica(1, "t"), b"lost 1", b"lost 2")
    append(simulated_cluster.replica(1, "t"), b"lost 3")
    await simulated_cluster.move_leadership("t", 2)
    append(simulated_cluster.replica(2, "t"), b"kept")
    simulated_cluster.heal()
    await simulated_cluster.wait_until_identical("t")
    for node_id in (1, 2, 3):
        assert await values(simulated_cluster, node_id) == [b"a", b"kept"]


@in_simulated_cluster()
async def test_after_two_quick_elections_the_histories_are_compared_until_they_agree(
    simulated_cluster: SimulatedCluster,
) -> None:
    """KIP-279: the leader may not know the epoch in which the follower wrote last."""
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    for node_id in (1, 2, 3):
        simulated_cluster.isolate(node_id)
    append(simulated_cluster.replica(1, "t"), b"of epoch 0")
    await simulated_cluster.move_leadership("t", 2)
    append(simulated_cluster.replica(2, "t"), b"of epoch 1", b"and another")
    await simulated_cluster.move_leadership("t", 3)
    append(simulated_cluster.replica(3, "t"), b"of epoch 2")
    await simulated_cluster.move_leadership("t", 1)  # which knows of epoch 0 only
    append(simulated_cluster.replica(1, "t"), b"of epoch 3")
    simulated_cluster.heal()
    await simulated_cluster.wait_until_identical("t")
    assert (
        epochs(simulated_cluster, 1) == epochs(simulated_cluster, 2) == epochs(simulated_cluster, 3) == ((0, 0), (3, 2))
    )
    assert await values(simulated_cluster, 3) == [b"a", b"of epoch 0", b"of epoch 3"]


@in_simulated_cluster()
async def test_a_leader_without_own_records_returns_the_diverging_epoch(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster.isolate(2)
    await simulated_cluster.move_leadership("t", 2)
    append(simulated_cluster.replica(2, "t"), b"of epoch 1")
    await simulated_cluster.move_leadership("t", 3)
    simulated_cluster.heal()
    await simulated_cluster.wait_until_identical("t")
    assert simulated_cluster.replica(2, "t").log.end_offset == 1


@in_simulated_cluster()
async def test_a_former_leader_without_own_records_follows_an_older_epoch(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster.isolate(1)
    append(simulated_cluster.replica(1, "t"), b"of epoch 0")
    await simulated_cluster.move_leadership("t", 2)
    await simulated_cluster.move_leadership("t", 1)
    simulated_cluster.heal()
    await simulated_cluster.wait_until_identical("t")
    assert await values(simulated_cluster, 2) == [b"a", b"of epoch 0"]


@in_simulated_cluster()
async def test_a_follower_that_truncates_learns_high_watermark_and_log_start_though_they_do_not_move(
    simulated_cluster: SimulatedCluster,
) -> None:
    """The response with the diverging epoch has them too, but the follower uses them only after its truncation."""
    await simulated_cluster.create_topic("t", (1, 2))
    for value in (b"a", b"b"):
        await produce(simulated_cluster[1], "t", value)
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster.isolate(2)
    await simulated_cluster.move_leadership("t", 2)
    append(simulated_cluster.replica(2, "t"), b"of epoch 1")
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(2, "t").log.flushed_offset == 3)
    await simulated_cluster.move_leadership("t", 1)
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(1, "t").high_watermark == 2)
    await simulated_cluster.replica(1, "t").log.advance_start(1)
    simulated_cluster.heal()
    await simulated_cluster.open(2)  # it knows nothing of what is committed
    await simulated_cluster.wait_until_identical("t")
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(2, "t").log.start_offset == 1)


@in_simulated_cluster(2)
async def test_a_follower_learns_the_high_watermark_again_in_a_new_epoch_of_the_same_leader(
    simulated_cluster: SimulatedCluster,
) -> None:
    """The new epoch begins after the follower has appended and before it flushes, while it trims another partition:
    the high watermark of the old epoch, which it could not use yet, no longer counts."""
    await simulated_cluster.create_topic("t", (1, 2), (1, 2))
    for index in (0, 1):
        await produce(simulated_cluster[1], "t", b"a", partition=index)
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(2, "t", 1).log.flushed_offset == 1)
    simulated_cluster[2].kill()
    for index in (0, 1):
        await simulated_cluster.wait_until_in_sync("t", 1, index=index)
    await produce(simulated_cluster[1], "t", b"b")
    await simulated_cluster.replica(1, "t", 1).log.advance_start(1)
    await simulated_cluster.open(2)
    simulated_cluster[2].host.disk.delay_seconds = (1.0, 1.0)
    follower = simulated_cluster.replica(2, "t")
    await simulated_cluster.wait_until(lambda: follower.log.end_offset == 2)
    assert follower.high_watermark < 2
    leader = simulated_cluster[1].broker.catalogue.nodes[1]
    await simulated_cluster.change_partition("t", lambda record: with_leader(record, leader))
    await simulated_cluster.wait_until(lambda: follower.leader_epoch == simulated_cluster.record("t").leader_epoch)
    assert follower.log.flushed_offset < 2
    await simulated_cluster.wait_until_identical("t")


@in_simulated_cluster()
async def test_a_follower_does_not_truncate_to_its_own_high_watermark(simulated_cluster: SimulatedCluster) -> None:
    """KIP-101: its high watermark lags by a fetch; what lies above may be committed."""
    await simulated_cluster.create_topic("t", (1, 2), min_insync_replicas="1")
    await produce(simulated_cluster[1], "t", b"a", b"b")
    follower = simulated_cluster.replica(2, "t")
    await simulated_cluster.wait_until(lambda: follower.log.end_offset == 2)
    for simulated_broker in (simulated_cluster[1], simulated_cluster[2]):
        simulated_broker.kill()
    await simulated_cluster.open(2)  # it knows nothing of what is committed, and has everything
    await simulated_cluster.wait_for_leader("t", 2)
    assert await read_all(simulated_cluster[2], "t") == [b"a", b"b"]
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until_identical("t")
    assert simulated_cluster.replica(1, "t").log.end_offset == 2


@in_simulated_cluster()
async def test_a_leader_that_never_wrote_in_its_epoch_leaves_no_trace_of_it(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    await simulated_cluster.move_leadership("t", 2)
    await simulated_cluster.move_leadership("t", 3)
    assert await produce(simulated_cluster[3], "t", b"b") == 1
    await simulated_cluster.wait_until_identical("t")
    assert (
        epochs(simulated_cluster, 1) == epochs(simulated_cluster, 2) == epochs(simulated_cluster, 3) == ((0, 0), (2, 1))
    )


@in_simulated_cluster()
async def test_truncating_committed_records_is_a_bug_that_stops_the_broker(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a", b"b")
    await produce(simulated_cluster[1], "t", b"c")
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster.isolate(1)
    await simulated_cluster.replica(1, "t").log.truncate(2)  # what no leader ever does
    simulated_cluster.replica(1, "t").high_watermark = 0
    first = simulated_cluster[1].broker.catalogue.nodes[1]
    await simulated_cluster.change_partition("t", lambda record: with_leader(record, first))
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(1, "t").leader_epoch == 1)
    append(simulated_cluster.replica(1, "t"), b"x")
    simulated_cluster.heal()
    simulated_cluster.expected_to_fail.add(2)
    cause = await failure(simulated_cluster[2])
    assert isinstance(cause, AssertionError)
    assert "below its high watermark" in str(cause)


@in_simulated_cluster()
async def test_after_an_unclean_election_committed_records_are_cut_off_where_the_operator_gave_them_up(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    await produce(simulated_cluster[1], "t", b"given up")
    simulated_cluster[1].kill()
    await simulated_cluster.open(2)
    assert simulated_cluster.record("t").leader == -1
    live = simulated_cluster[2].broker.catalogue.nodes
    await simulated_cluster.change_partition("t", lambda record: elect_unclean(record, live) or record)
    await simulated_cluster.wait_for_leader("t", 2)
    assert await produce(simulated_cluster[2], "t", b"b") == 1
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until_identical("t")
    assert await values(simulated_cluster, 1) == [b"a", b"b"]


@in_simulated_cluster(sessions_time_out=True, replica_lag_time_max_ms="1000")
async def test_truncating_a_replica_below_its_high_watermark_stops_the_broker(
    simulated_cluster: SimulatedCluster,
) -> None:
    """It was away only as far as the registry knew, and comes back with what the operator has given up."""
    await simulated_cluster.create_topic("t", (3, 2), by=3)
    await produce(simulated_cluster[3], "t", b"a")
    simulated_cluster.isolate(2)
    assert await produce(simulated_cluster[3], "t", b"given up") == 1
    assert simulated_cluster.record("t").isr == (3,)
    simulated_cluster[3].registry.disconnect()
    await simulated_cluster.wait_until(lambda: simulated_cluster.record("t").leader == -1)
    live = simulated_cluster[2].broker.catalogue.nodes
    await simulated_cluster.change_partition("t", lambda record: elect_unclean(record, live) or record)
    await simulated_cluster.wait_for_leader("t", 2)
    assert simulated_cluster.replica(3, "t").high_watermark == 2
    simulated_cluster.heal()
    simulated_cluster[3].registry.reconnect()
    assert await produce(simulated_cluster[2], "t", b"b") == 1
    await simulated_cluster.wait_until_identical("t")
    assert await values(simulated_cluster, 3) == [b"a", b"b"]


async def elect_uncleanly(simulated_cluster: SimulatedCluster, node_id: int) -> None:
    """Start this broker, after all others were killed, and let it lead with what it has."""
    for simulated_broker in list(simulated_cluster.up):
        simulated_broker.kill()
    await simulated_cluster.open(node_id)
    live = simulated_cluster[node_id].broker.catalogue.nodes
    await simulated_cluster.change_partition(
        "t", lambda record: elect_unclean(record, live, favored=(node_id,)) or record
    )
    await simulated_cluster.wait_for_leader("t", node_id)


@pytest.mark.parametrize("deleted", [2, 3])
@in_simulated_cluster()
async def test_a_replica_ahead_of_an_unclean_leader_copies_its_log_from_the_start(
    simulated_cluster: SimulatedCluster, deleted: int
) -> None:
    """Whether all of its records were deleted, or all but the last: its log start offset means nothing any more."""
    await simulated_cluster.create_topic("t", (1, 2))
    await simulated_cluster.wait_until_in_sync("t")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    for _ in range(3):
        await produce(simulated_cluster[1], "t", b"given up")
    await simulated_cluster.replica(1, "t").log.advance_start(deleted)
    await elect_uncleanly(simulated_cluster, 2)
    written = [b"a", b"b", b"c", b"d"]
    for value in written:
        await produce(simulated_cluster[2], "t", value)
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until_identical("t")
    assert await values(simulated_cluster, 1) == written


@in_simulated_cluster()
async def test_a_replica_with_only_abandoned_epochs_copies_the_new_leaders_log_from_its_start(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await simulated_cluster.wait_until_in_sync("t")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    await produce(simulated_cluster[1], "t", b"given up")
    await elect_uncleanly(simulated_cluster, 2)
    await produce(simulated_cluster[2], "t", b"a")
    await produce(simulated_cluster[2], "t", b"b")
    await elect_uncleanly(simulated_cluster, 1)
    for _ in range(3):
        await produce(simulated_cluster[1], "t", b"given up")
    await simulated_cluster.replica(1, "t").log.advance_start(2)  # where no record of an earlier epoch is left
    await elect_uncleanly(simulated_cluster, 2)
    await produce(simulated_cluster[2], "t", b"c")
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until_identical("t")
    assert await values(simulated_cluster, 1) == [b"a", b"b", b"c"]


@in_simulated_cluster()
async def test_a_follower_in_sync_keeps_its_log_start_when_it_has_deleted_more_than_the_new_leader(
    simulated_cluster: SimulatedCluster,
) -> None:
    """It counts as having everything up to there, and must never have less."""
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    await produce(simulated_cluster[1], "t", b"b")
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster.isolate(2)
    await simulated_cluster.replica(1, "t").log.advance_start(2)
    await simulated_cluster.move_leadership("t", 2)
    simulated_cluster.heal()
    await produce(simulated_cluster[2], "t", b"c")
    await simulated_cluster.wait_until_identical("t")
    assert (simulated_cluster.replica(1, "t").log.start_offset, simulated_cluster.replica(2, "t").log.start_offset) == (
        2,
        0,
    )


# Where the leader's log begins


@in_simulated_cluster()
async def test_a_follower_that_was_down_too_long_starts_at_the_leaders_log_start(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    for number in range(4):
        await produce(simulated_cluster[1], "t", b"%d" % number)
    await simulated_cluster.replica(1, "t").log.advance_start(3)
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")
    assert simulated_cluster.replica(2, "t").log.start_offset == 3
    assert simulated_cluster.replica(2, "t").high_watermark == 5


@pytest.mark.parametrize("has_disk", [True, False])
@in_simulated_cluster()
async def test_a_new_follower_catches_up_when_the_leaders_log_starts_inside_a_batch(
    simulated_cluster: SimulatedCluster, has_disk: bool
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    await produce(simulated_cluster[1], "t", b"b", b"c", b"d", b"e")
    await produce(simulated_cluster[1], "t", b"f")
    await simulated_cluster.replica(1, "t").log.advance_start(3)  # as DeleteRecords does
    if not has_disk:
        await simulated_cluster.replace_disk(2)
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(2, "t").log.start_offset == 3)
    simulated_cluster[2].kill(keep_page_cache=False)
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.move_leadership("t", 2)
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(2, "t").high_watermark == 6)
    assert await read_all(simulated_cluster[2], "t", offset=3) == [
        b"b",
        b"c",
        b"d",
        b"e",
        b"f",
    ]  # the first batch is read whole
    with pytest.raises(AssertionError, match="error_code=1,"):
        await read_all(simulated_cluster[2], "t", offset=2)


@pytest.mark.parametrize("moment", ["emptied", "appended", "trimmed"])
@in_simulated_cluster()
async def test_a_follower_that_loses_power_while_it_starts_inside_a_batch_catches_up(
    simulated_cluster: SimulatedCluster, moment: str
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    await produce(simulated_cluster[1], "t", b"b", b"c", b"d", b"e")
    await simulated_cluster.replica(1, "t").log.advance_start(3)
    await simulated_cluster.open(2)
    simulated_cluster[2].host.disk.delay_seconds = (0.5, 0.5)
    log = simulated_cluster.replica(2, "t").log
    await simulated_cluster.wait_until(lambda: log.start_offset == 3)
    at = {"emptied": (1, 1, 1), "appended": (1, 1, 5), "trimmed": (3, 5, 5)}[moment]
    await simulated_cluster.wait_until(lambda: (log.start_offset, log.flushed_offset, log.end_offset) == at)
    simulated_cluster[2].host.disk.delay_seconds = (0.0, 0.0)
    simulated_cluster[2].kill(keep_page_cache=False)
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(2, "t").log.start_offset == 3)


@in_simulated_cluster()
async def test_followers_advance_their_log_start_with_the_leader_even_without_writes(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    for number in range(4):
        await produce(simulated_cluster[1], "t", b"%d" % number)
    await simulated_cluster.wait_until_identical("t")
    await asyncio.sleep(5)
    await simulated_cluster.replica(1, "t").log.advance_start(2)  # as retention does
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(2, "t").log.start_offset == 2)
    assert simulated_cluster.replica(2, "t").high_watermark == 4


@in_simulated_cluster()
async def test_a_follower_that_trims_with_new_records_advances_its_high_watermark(
    simulated_cluster: SimulatedCluster,
) -> None:
    """The leader sends it once. A follower that loses it does not get it again before the next write."""
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    for value in (b"b", b"c"):
        await produce(simulated_cluster[1], "t", value)
    await simulated_cluster.replica(1, "t").log.advance_start(1)  # which the follower has
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")
    assert simulated_cluster.replica(2, "t").log.start_offset == 1


@in_simulated_cluster()
async def test_retention_above_the_high_watermark_does_not_break_a_follower_of_the_next_leader(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", segment_bytes="1000", retention_bytes="0")
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[3].kill()
    await simulated_cluster.wait_until_in_sync("t", 1, 2)
    simulated_cluster.isolate(2)  # still in sync, so the high watermark stands still
    leader = simulated_cluster.replica(1, "t")
    for _ in range(4):
        append(leader, b"x" * 900)
    await simulated_cluster[1].host.start(leader.log.flusher.flush(leader.log), "flush")
    await simulated_cluster[1].host.start(simulated_cluster[1].broker.store.enforce_retention(), "retention")
    assert leader.log.start_offset <= leader.high_watermark == 1
    await simulated_cluster.open(3)
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(3, "t").log.end_offset == 5)
    simulated_cluster.isolate(1)
    await simulated_cluster.move_leadership("t", 2)
    append(simulated_cluster.replica(2, "t"), b"b")
    simulated_cluster.heal()
    await simulated_cluster.wait_until_identical("t")
    assert await read_all(simulated_cluster[2], "t", offset=1) == [b"b"]


@in_simulated_cluster()
async def test_a_replica_that_catches_up_respects_the_replication_throttle(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"x" * 100_000)
    await produce(simulated_cluster[1], "t", b"x" * 100_000)
    simulated_cluster[2].kill()
    await simulated_cluster[2].open(follower_replication_throttled_rate="1000", replica_fetch_max_bytes="1000")
    assert await produce(simulated_cluster[1], "t", b"a") == 2
    await simulated_cluster.wait_until_identical("t")


@pytest.mark.parametrize("event", ["leads", "follows another", "is given up"])
@in_simulated_cluster()
async def test_a_response_for_an_ended_leader_epoch_is_ignored(simulated_cluster: SimulatedCluster, event: str) -> None:
    """It is on its way while the lead moves: what it holds may not be part of the new history."""
    await simulated_cluster.create_topic("t")
    await simulated_cluster.wait_until_in_sync("t")
    fetchers = simulated_cluster[2].broker.cluster._follower_fetchers._fetchers
    await simulated_cluster.wait_until(lambda: 1 in fetchers and bool(fetchers[1]._followed))
    partition, fetcher = simulated_cluster.replica(2, "t"), fetchers[1]
    followed = fetcher._followed[partition]
    if event == "is given up":
        await simulated_cluster[1].delete_topic("t")
        await simulated_cluster.wait_until(lambda: partition.is_retired)
    else:
        await simulated_cluster.move_leadership("t", 2 if event == "leads" else 3)
        await simulated_cluster.wait_until(lambda: partition.leader_epoch == 1)
    late = batch(b"late")
    assign_offset_and_epoch(memoryview(late), 0, 0)
    data = PartitionData(partition_index=0, high_watermark=1, records=late)
    await simulated_cluster[2].host.start(fetcher._process(followed, data), "a late answer")
    assert (partition.log.end_offset, partition.high_watermark) == (0, 0)
    diverging = PartitionData(partition_index=0, diverging_epoch=EpochEndOffset(epoch=0, end_offset=0))
    await simulated_cluster[2].host.start(fetcher._process(followed, diverging), "another")
