"""Copying from a leader: what is taken, what is cut off, and what a fetch promises."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.unit.broker.asking import batch, produce, produce_request, read_all
from tests.unit.broker.town import Town, in_town
from tests.unit.broker.trio import ClusterHouse

from headrace.broker.partition import Partition
from headrace.broker.replica_fetcher import ReplicaFetcher
from headrace.machines.leadership import elect_unclean, elected
from headrace.runtime.supervise import BackgroundTaskDied
from headrace.wire.batch import parse_header, stamp
from headrace.wire.messages.fetch import EpochEndOffset, PartitionData


def append(partition: Partition, *values: bytes) -> None:
    """At the leader, without waiting for anybody."""
    data = memoryview(batch(*values))
    partition.append(data, parse_header(data), 0)


async def values(town: Town, node_id: int, topic: str = "t") -> list[bytes]:
    """What a replica serves when it leads."""
    await town.until_in_sync(topic)
    await town.move_lead(topic, node_id)
    replica = town.replica(node_id, topic)
    await town.until(lambda: replica.high_watermark == replica.log.end_offset)
    found: list[bytes] = []
    while len(found) < replica.high_watermark:  # an answer ends with a segment
        found += await read_all(town[node_id], topic, offset=len(found))
    return found


def epochs(town: Town, node_id: int) -> tuple[tuple[int, int], ...]:
    return town.replica(node_id, "t").log.epochs.entries()


async def failure(house: ClusterHouse) -> BaseException | None:
    with suppress(TimeoutError, BackgroundTaskDied):
        async with asyncio.timeout(10):
            await house.supervisor.failure()
    failed = house.supervisor._first_failure
    return None if failed is None else failed.__cause__


# Copying


@in_town()
async def test_a_follower_has_the_same_bytes_and_knows_what_is_committed(town: Town) -> None:
    await town.make_topic("t")
    for number in range(5):
        await produce(town[1], "t", b"%d" % number)
    await town.until_alike("t")
    files = {town[node_id].host.disk.read(town.replica(node_id, "t").log.segments[0].path) for node_id in (1, 2, 3)}
    assert len(files) == 1


@in_town(2)
async def test_nothing_is_committed_before_the_follower_has_it_on_its_disk(town: Town) -> None:
    """Its fetch offset is its promise: what lies below survives a power cut (I1)."""
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    town[2].host.disk.delay_seconds = (1.0, 1.0)  # of a flush
    sending = town[1].begin(produce_request({("t", 0): batch(b"b")}), 9)
    follower = town.replica(2, "t")
    await town.until(lambda: follower.log.end_offset == 2)
    assert (follower.log.flushed_offset, town.replica(1, "t").high_watermark) == (1, 1)
    await town.until(lambda: follower.log.flushed_offset == 2)
    assert (await sending).responses[0].partition_responses[0].error_code == 0
    for house in town.up:
        house.kill(keep_page_cache=False)
    await town.open()
    assert await read_all(await town.until_led("t"), "t") == [b"a", b"b"]


@in_town(2)
async def test_a_topic_that_does_not_wait_for_the_disk_does_not_wait_for_the_followers_disk_either(town: Town) -> None:
    await town.make_topic("t", flush_messages="1000")
    await produce(town[1], "t", b"first")  # the follower has noted its leader on its disk
    town[2].host.disk.delay_seconds = town[1].host.disk.delay_seconds = (5.0, 5.0)
    began = town.world.clock.monotonic()
    await produce(town[1], "t", b"a")
    assert town.world.clock.monotonic() - began < 3
    assert town.replica(2, "t").log.flushed_offset == 0


@in_town()
async def test_what_a_follower_is_sent_is_checked(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    await town.make_topic("t", (1, 2))
    taken = ReplicaFetcher._take
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

    monkeypatch.setattr(ReplicaFetcher, "_take", spoil)
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    assert spoilt == 3
    assert await values(town, 2) == [b"a"]


@in_town()
async def test_a_leader_that_is_away_is_asked_again_when_it_is_back(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    town.isolate(1)
    append(town.replica(1, "t"), b"a")
    await asyncio.sleep(20)
    assert town.replica(2, "t").log.end_offset == 0
    assert town[2].broker.cluster._replication.lagging == 1
    town.heal()
    await town.until_alike("t")
    await town.until(lambda: town[2].broker.cluster._replication.lagging == 0)


@in_town()
async def test_a_leader_that_has_forgotten_the_session_is_told_everything_again(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    sessions = town[1].broker.fetch._sessions
    for session_id in list(sessions._sessions):
        sessions.close(session_id)
    assert await produce(town[1], "t", b"b") == 1
    await town.until_alike("t")


# Where histories part


@in_town()
async def test_what_was_never_committed_is_cut_off_where_the_new_leader_has_something_else(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    town.isolate(1)
    append(town.replica(1, "t"), b"lost 1", b"lost 2")
    append(town.replica(1, "t"), b"lost 3")
    await town.move_lead("t", 2)
    append(town.replica(2, "t"), b"kept")
    town.heal()
    await town.until_alike("t")
    for node_id in (1, 2, 3):
        assert await values(town, node_id) == [b"a", b"kept"]


@in_town()
async def test_after_two_quick_elections_the_histories_are_compared_until_they_agree(town: Town) -> None:
    """KIP-279: the leader may not know the epoch in which the follower wrote last."""
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    for node_id in (1, 2, 3):
        town.isolate(node_id)
    append(town.replica(1, "t"), b"of epoch 0")
    await town.move_lead("t", 2)
    append(town.replica(2, "t"), b"of epoch 1", b"and another")
    await town.move_lead("t", 3)
    append(town.replica(3, "t"), b"of epoch 2")
    await town.move_lead("t", 1)  # which knows of epoch 0 only
    append(town.replica(1, "t"), b"of epoch 3")
    town.heal()
    await town.until_alike("t")
    assert epochs(town, 1) == epochs(town, 2) == epochs(town, 3) == ((0, 0), (3, 2))
    assert await values(town, 3) == [b"a", b"of epoch 0", b"of epoch 3"]


@in_town()
async def test_a_leader_that_has_written_nothing_yet_tells_where_histories_part(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    town.isolate(2)
    await town.move_lead("t", 2)
    append(town.replica(2, "t"), b"of epoch 1")
    await town.move_lead("t", 3)
    town.heal()
    await town.until_alike("t")
    assert town.replica(2, "t").log.end_offset == 1


@in_town()
async def test_one_that_led_and_wrote_nothing_follows_a_history_of_an_older_epoch(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    town.isolate(1)
    append(town.replica(1, "t"), b"of epoch 0")
    await town.move_lead("t", 2)
    await town.move_lead("t", 1)
    town.heal()
    await town.until_alike("t")
    assert await values(town, 2) == [b"a", b"of epoch 0"]


@in_town()
async def test_a_follower_that_truncates_learns_high_watermark_and_log_start_though_they_do_not_move(
    town: Town,
) -> None:
    """The response that tells where histories part has them too, but they count only once the histories agree."""
    await town.make_topic("t", (1, 2))
    for value in (b"a", b"b"):
        await produce(town[1], "t", value)
    await town.until_alike("t")
    town.isolate(2)
    await town.move_lead("t", 2)
    append(town.replica(2, "t"), b"of epoch 1")
    await town.until(lambda: town.replica(2, "t").log.flushed_offset == 3)
    await town.move_lead("t", 1)
    town[2].kill()
    await town.until(lambda: town.replica(1, "t").high_watermark == 2)
    await town.replica(1, "t").log.advance_start(1)
    town.heal()
    await town.open(2)  # it knows nothing of what is committed
    await town.until_alike("t")
    await town.until(lambda: town.replica(2, "t").log.start_offset == 1)


@in_town(2)
async def test_a_follower_learns_the_high_watermark_again_in_a_new_epoch_of_the_same_leader(town: Town) -> None:
    """The new epoch begins after the follower has appended and before it flushes, while it trims another partition:
    the high watermark of the old epoch, which it could not use yet, no longer counts."""
    await town.make_topic("t", (1, 2), (1, 2))
    for index in (0, 1):
        await produce(town[1], "t", b"a", partition=index)
    await town.until(lambda: town.replica(2, "t", 1).log.flushed_offset == 1)
    town[2].kill()
    for index in (0, 1):
        await town.until_in_sync("t", 1, index=index)
    await produce(town[1], "t", b"b")
    await town.replica(1, "t", 1).log.advance_start(1)
    await town.open(2)
    town[2].host.disk.delay_seconds = (1.0, 1.0)
    follower = town.replica(2, "t")
    await town.until(lambda: follower.log.end_offset == 2)
    assert follower.high_watermark < 2
    leader = town[1].broker.catalogue.nodes[1]
    await town.change("t", lambda record: elected(record, leader))
    await town.until(lambda: follower.leader_epoch == town.record("t").leader_epoch)
    assert follower.log.flushed_offset < 2
    await town.until_alike("t")


@in_town()
async def test_a_follower_is_not_cut_to_its_own_high_watermark(town: Town) -> None:
    """KIP-101: its high watermark lags by a fetch; what lies above may be committed."""
    await town.make_topic("t", (1, 2), min_insync_replicas="1")
    await produce(town[1], "t", b"a", b"b")
    follower = town.replica(2, "t")
    await town.until(lambda: follower.log.end_offset == 2)
    for house in (town[1], town[2]):
        house.kill()
    await town.open(2)  # it knows nothing of what is committed, and has everything
    await town.until_led("t", 2)
    assert await read_all(town[2], "t") == [b"a", b"b"]
    await town.open(1)
    await town.until_alike("t")
    assert town.replica(1, "t").log.end_offset == 2


@in_town()
async def test_a_leader_that_never_wrote_in_its_epoch_leaves_no_trace_of_it(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    await town.move_lead("t", 2)
    await town.move_lead("t", 3)
    assert await produce(town[3], "t", b"b") == 1
    await town.until_alike("t")
    assert epochs(town, 1) == epochs(town, 2) == epochs(town, 3) == ((0, 0), (2, 1))


@in_town()
async def test_to_cut_below_what_is_committed_is_a_bug_that_stops_the_broker(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a", b"b")
    await produce(town[1], "t", b"c")
    await town.until_alike("t")
    town.isolate(1)
    await town.replica(1, "t").log.truncate(2)  # what no leader ever does
    town.replica(1, "t").high_watermark = 0
    first = town[1].broker.catalogue.nodes[1]
    await town.change("t", lambda record: elected(record, first))
    await town.until(lambda: town.replica(1, "t").leader_epoch == 1)
    append(town.replica(1, "t"), b"x")
    town.heal()
    town.doomed.add(2)
    cause = await failure(town[2])
    assert isinstance(cause, AssertionError)
    assert "below its high watermark" in str(cause)


@in_town()
async def test_after_an_unclean_election_committed_records_are_cut_off_where_the_operator_gave_them_up(
    town: Town,
) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    town[2].kill()
    await town.until_in_sync("t", 1)
    await produce(town[1], "t", b"given up")
    town[1].kill()
    await town.open(2)
    assert town.record("t").leader == -1
    live = town[2].broker.catalogue.nodes
    await town.change("t", lambda record: elect_unclean(record, live) or record)
    await town.until_led("t", 2)
    assert await produce(town[2], "t", b"b") == 1
    await town.open(1)
    await town.until_alike("t")
    assert await values(town, 1) == [b"a", b"b"]


@in_town(sessions_time_out=True, replica_lag_time_max_ms="1000")
async def test_so_is_a_replica_cut_that_knows_what_was_committed(town: Town) -> None:
    """It was away only as far as the registry knew, and comes back with what the operator has given up."""
    await town.make_topic("t", (3, 2), by=3)
    await produce(town[3], "t", b"a")
    town.isolate(2)
    assert await produce(town[3], "t", b"given up") == 1
    assert town.record("t").isr == (3,)
    town[3].registry.disconnect()
    await town.until(lambda: town.record("t").leader == -1)
    live = town[2].broker.catalogue.nodes
    await town.change("t", lambda record: elect_unclean(record, live) or record)
    await town.until_led("t", 2)
    assert town.replica(3, "t").high_watermark == 2
    town.heal()
    town[3].registry.reconnect()
    assert await produce(town[2], "t", b"b") == 1
    await town.until_alike("t")
    assert await values(town, 3) == [b"a", b"b"]


async def elect_uncleanly(town: Town, node_id: int) -> None:
    """Start this broker, after all others were killed, and let it lead with what it has."""
    for house in list(town.up):
        house.kill()
    await town.open(node_id)
    live = town[node_id].broker.catalogue.nodes
    await town.change("t", lambda record: elect_unclean(record, live, node_id) or record)
    await town.until_led("t", node_id)


@pytest.mark.parametrize("deleted", [2, 3])
@in_town()
async def test_a_replica_that_deleted_what_the_operator_gave_up_copies_the_new_leaders_log_from_its_start(
    town: Town, deleted: int
) -> None:
    """Whether all of its records were deleted, or all but the last: its log start offset means nothing any more."""
    await town.make_topic("t", (1, 2))
    await town.until_in_sync("t")
    town[2].kill()
    await town.until_in_sync("t", 1)
    for _ in range(3):
        await produce(town[1], "t", b"given up")
    await town.replica(1, "t").log.advance_start(deleted)
    await elect_uncleanly(town, 2)
    written = [b"a", b"b", b"c", b"d"]
    for value in written:
        await produce(town[2], "t", value)
    await town.open(1)
    await town.until_alike("t")
    assert await values(town, 1) == written


@in_town()
async def test_a_replica_whose_own_epochs_were_all_given_up_copies_the_new_leaders_log_from_its_start(
    town: Town,
) -> None:
    await town.make_topic("t", (1, 2))
    await town.until_in_sync("t")
    town[2].kill()
    await town.until_in_sync("t", 1)
    await produce(town[1], "t", b"given up")
    await elect_uncleanly(town, 2)
    await produce(town[2], "t", b"a")
    await produce(town[2], "t", b"b")
    await elect_uncleanly(town, 1)
    for _ in range(3):
        await produce(town[1], "t", b"given up")
    await town.replica(1, "t").log.advance_start(2)  # where no record of an earlier epoch is left
    await elect_uncleanly(town, 2)
    await produce(town[2], "t", b"c")
    await town.open(1)
    await town.until_alike("t")
    assert await values(town, 1) == [b"a", b"b", b"c"]


@in_town()
async def test_a_follower_in_sync_keeps_its_log_start_when_it_has_deleted_more_than_the_new_leader(town: Town) -> None:
    """It counts as having everything up to there, and must never have less."""
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    await produce(town[1], "t", b"b")
    await town.until_alike("t")
    town.isolate(2)
    await town.replica(1, "t").log.advance_start(2)
    await town.move_lead("t", 2)
    town.heal()
    await produce(town[2], "t", b"c")
    await town.until_alike("t")
    assert (town.replica(1, "t").log.start_offset, town.replica(2, "t").log.start_offset) == (2, 0)


# Where the leader's log begins


@in_town()
async def test_a_follower_that_was_away_too_long_begins_where_the_leaders_log_begins(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    town[2].kill()
    await town.until_in_sync("t", 1)
    for number in range(4):
        await produce(town[1], "t", b"%d" % number)
    await town.replica(1, "t").log.advance_start(3)
    await town.open(2)
    await town.until_in_sync("t")
    await town.until_alike("t")
    assert town.replica(2, "t").log.start_offset == 3
    assert town.replica(2, "t").high_watermark == 5


@pytest.mark.parametrize("has_disk", [True, False])
@in_town()
async def test_a_new_follower_catches_up_when_the_leaders_log_starts_inside_a_batch(town: Town, has_disk: bool) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    town[2].kill()
    await town.until_in_sync("t", 1)
    await produce(town[1], "t", b"b", b"c", b"d", b"e")
    await produce(town[1], "t", b"f")
    await town.replica(1, "t").log.advance_start(3)  # as DeleteRecords does
    if not has_disk:
        await town.replace_disk(2)
    await town.open(2)
    await town.until_in_sync("t")
    await town.until_alike("t")
    await town.until(lambda: town.replica(2, "t").log.start_offset == 3)
    town[2].kill(keep_page_cache=False)
    await town.open(2)
    await town.until_in_sync("t")
    await town.move_lead("t", 2)
    await town.until(lambda: town.replica(2, "t").high_watermark == 6)
    assert await read_all(town[2], "t", offset=3) == [b"b", b"c", b"d", b"e", b"f"]  # the first batch is read whole
    with pytest.raises(AssertionError, match="error_code=1,"):
        await read_all(town[2], "t", offset=2)


@pytest.mark.parametrize("moment", ["emptied", "appended", "trimmed"])
@in_town()
async def test_a_follower_that_loses_power_while_it_starts_inside_a_batch_catches_up(town: Town, moment: str) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    town[2].kill()
    await town.until_in_sync("t", 1)
    await produce(town[1], "t", b"b", b"c", b"d", b"e")
    await town.replica(1, "t").log.advance_start(3)
    await town.open(2)
    town[2].host.disk.delay_seconds = (0.5, 0.5)
    log = town.replica(2, "t").log
    await town.until(lambda: log.start_offset == 3)
    at = {"emptied": (1, 1, 1), "appended": (1, 1, 5), "trimmed": (3, 5, 5)}[moment]
    await town.until(lambda: (log.start_offset, log.flushed_offset, log.end_offset) == at)
    town[2].host.disk.delay_seconds = (0.0, 0.0)
    town[2].kill(keep_page_cache=False)
    await town.open(2)
    await town.until_in_sync("t")
    await town.until_alike("t")
    await town.until(lambda: town.replica(2, "t").log.start_offset == 3)


@in_town()
async def test_what_the_leader_deletes_is_deleted_by_followers_also_when_nothing_is_written(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    for number in range(4):
        await produce(town[1], "t", b"%d" % number)
    await town.until_alike("t")
    await asyncio.sleep(5)
    await town.replica(1, "t").log.advance_start(2)  # as retention does
    await town.until(lambda: town.replica(2, "t").log.start_offset == 2)
    assert town.replica(2, "t").high_watermark == 4


@in_town()
async def test_a_follower_that_trims_with_new_records_knows_that_they_are_committed(town: Town) -> None:
    """The leader tells it once; if it forgets, it does not hear of it again until something is written."""
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    town[2].kill()
    await town.until_in_sync("t", 1)
    for value in (b"b", b"c"):
        await produce(town[1], "t", value)
    await town.replica(1, "t").log.advance_start(1)  # which the follower has
    await town.open(2)
    await town.until_in_sync("t")
    await town.until_alike("t")
    assert town.replica(2, "t").log.start_offset == 1


@in_town()
async def test_retention_above_the_high_watermark_does_not_break_a_follower_of_the_next_leader(town: Town) -> None:
    await town.make_topic("t", segment_bytes="1000", retention_bytes="0")
    await produce(town[1], "t", b"a")
    town[3].kill()
    await town.until_in_sync("t", 1, 2)
    town.isolate(2)  # still in sync, so the high watermark stands still
    leader = town.replica(1, "t")
    for _ in range(4):
        append(leader, b"x" * 900)
    await town[1].host.start(leader.log.flusher.flush(leader.log), "flush")
    await town[1].host.start(town[1].broker.store.enforce_retention(), "retention")
    assert leader.log.start_offset <= leader.high_watermark == 1
    await town.open(3)
    await town.until(lambda: town.replica(3, "t").log.end_offset == 5)
    town.isolate(1)
    await town.move_lead("t", 2)
    append(town.replica(2, "t"), b"b")
    town.heal()
    await town.until_alike("t")
    assert await read_all(town[2], "t", offset=1) == [b"b"]


@in_town()
async def test_a_replica_that_catches_up_keeps_to_the_rate_that_is_allowed(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"x" * 100_000)
    await produce(town[1], "t", b"x" * 100_000)
    town[2].kill()
    await town[2].open(follower_replication_throttled_rate="1000", replica_fetch_max_bytes="1000")
    assert await produce(town[1], "t", b"a") == 2
    await town.until_alike("t")


@pytest.mark.parametrize("event", ["leads", "follows another", "is given up"])
@in_town()
async def test_an_answer_for_an_epoch_that_is_over_is_not_taken(town: Town, event: str) -> None:
    """It is on its way while the lead moves: what it holds may not be part of the new history."""
    await town.make_topic("t")
    await town.until_in_sync("t")
    fetchers = town[2].broker.cluster._replication._fetchers
    await town.until(lambda: 1 in fetchers and bool(fetchers[1]._followed))
    partition, fetcher = town.replica(2, "t"), fetchers[1]
    followed = fetcher._followed[partition]
    if event == "is given up":
        await town[1].delete_topic("t")
        await town.until(lambda: partition.is_retired)
    else:
        await town.move_lead("t", 2 if event == "leads" else 3)
        await town.until(lambda: partition.leader_epoch == 1)
    late = batch(b"late")
    stamp(memoryview(late), 0, 0)
    data = PartitionData(partition_index=0, high_watermark=1, records=late)
    await town[2].host.start(fetcher._take(followed, data), "a late answer")
    assert (partition.log.end_offset, partition.high_watermark) == (0, 0)
    diverging = PartitionData(partition_index=0, diverging_epoch=EpochEndOffset(epoch=0, end_offset=0))
    await town[2].host.start(fetcher._take(followed, diverging), "another")
