"""Batches of a leader: checked, appended as they are, with the gaps that compaction has left between them."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.unit.storage.compaction.compacted_log_harness import COMPACT, CompactedLogHarness
from tests.unit.storage.follower_log_harness import FOLDER, Batch, FollowerLogHarness, make_batch
from tests.unit.storage.log_harness import SMALL

from headrace.runtime.disk import DiskFailed, DiskFull
from headrace.storage.config import LogConfig
from headrace.storage.errors import InvalidFollowerAppend
from headrace.storage.log.follower_batches import check_follower_batches
from headrace.wire.batches.batch import BatchRecord, build_batch, parse_header

GAPS_FILE = f"{FOLDER}/{0:020d}.copied-gaps"


def bytes_of(*batches: Batch) -> bytes:
    return b"".join(batch.data for batch in batches)


def make_row(*offsets: int, epoch: int = 0) -> list[Batch]:
    return [make_batch(offset, b"%d" % offset + b"." * 100, epoch=epoch) for offset in offsets]


def make_replica(*offsets: int, config: LogConfig = SMALL) -> FollowerLogHarness:
    replica = FollowerLogHarness(config=config)
    replica.copy(*make_row(*offsets))
    replica.flush()
    return replica


def restart(replica: FollowerLogHarness, how: str = "cut_power") -> None:
    getattr(replica, how)()
    replica.open()
    replica.check()
    replica.forget_what_was_lost()


def test_a_batch_is_copied_byte_for_byte() -> None:
    replica = make_replica(0, 1, 2)
    replica.check()
    restart(replica)
    assert replica.log.end_offset == 3


def test_a_last_batch_that_is_not_whole_is_ignored() -> None:
    whole, cut = make_row(0, 1)
    for size in range(len(cut.data)):
        copied = check_follower_batches(memoryview(whole.data + cut.data[:size]))
        assert (bytes(copied.data), copied.headers) == (whole.data, [whole.header])


def test_a_response_without_a_whole_batch_is_rejected_unless_it_is_empty() -> None:
    batch = make_batch(0)
    with pytest.raises(InvalidFollowerAppend):
        check_follower_batches(memoryview(batch.data[:-1]))
    replica = make_replica(0)
    assert replica.log.append_as_follower(check_follower_batches(memoryview(b""))) == 1


@pytest.mark.parametrize("size", [10, 200_000])
def test_any_damage_is_noticed(size: int) -> None:
    first, second = make_batch(0), make_batch(1, b"x" * size)
    data = bytearray(bytes_of(first, second))
    for position in (8, 16, 17, 21, 23, 40, len(second.data) - 1):
        damaged = bytearray(data)
        damaged[len(first.data) + position] ^= 0x80
        with pytest.raises(InvalidFollowerAppend):
            check_follower_batches(memoryview(damaged))


def test_batches_whose_offsets_go_back_are_rejected() -> None:
    for batches in (make_row(5, 4), make_row(5, 5), [*make_row(1, epoch=3), *make_row(2, epoch=2)]):
        with pytest.raises(InvalidFollowerAppend):
            check_follower_batches(memoryview(bytes_of(*batches)))


def test_batches_below_the_log_end_are_rejected_and_change_nothing() -> None:
    replica = FollowerLogHarness()
    replica.copy(*make_row(0, 1, 2, epoch=4))
    for batches in (make_row(2, 3, epoch=4), make_row(3, epoch=3)):
        with pytest.raises(InvalidFollowerAppend):
            replica.log.append_as_follower(check_follower_batches(memoryview(bytes_of(*batches))))
    replica.check()


def test_one_write_for_all_batches_of_a_segment() -> None:
    replica = FollowerLogHarness(config=LogConfig())
    replica.copy(make_batch(0))
    before = replica.world.disk.operations
    replica.copy(*make_row(*range(1, 50)))
    assert replica.world.disk.operations == before + 1
    replica.check()


def test_copied_batches_are_rolled_over_segments_and_indexed() -> None:
    replica = make_replica(*range(0, 120, 3), config=replace(SMALL, index_interval_bytes=100))
    assert len(replica.log.segments) > 2
    assert all(len(segment.index) for segment in replica.log.segments)
    replica.check()
    for how in ("kill", "cut_power"):
        restart(replica, how)


def test_markers_are_replayed_to_the_state_of_a_follower() -> None:
    leader, follower = CompactedLogHarness(), CompactedLogHarness()
    leader.put((b"a", b"1"), producer_id=7, in_transaction=True)
    leader.put((b"b", b"1"), producer_id=8, in_transaction=True)
    leader.end_transaction(7, is_commit=False)
    follower.log.append_as_follower(check_follower_batches(memoryview(leader.read(0))))
    assert follower.state.snapshot() == leader.state.snapshot()
    assert follower.state.ended == [[7, 0, 2]]


@pytest.mark.parametrize("how", ["kill", "cut_power"])
def test_gaps_survive_a_kill_and_a_power_cut(how: str) -> None:
    replica = make_replica(3, 4, 10, 500)
    restart(replica, how)
    assert replica.log.end_offset == 501
    replica.copy(*make_row(501, 600))
    replica.checkpoint()
    replica.copy(*make_row(700, 701))
    replica.flush()
    restart(replica, how)
    assert replica.log.end_offset == 702


def test_gaps_of_every_segment_that_a_restart_found_unflushed_are_durable_afterwards() -> None:
    """Recovery counts what it finds as flushed, so a power cut after it must not lose any of the gaps."""
    for seed in range(20):
        replica = FollowerLogHarness(seed, config=replace(SMALL, segment_bytes=500))
        replica.copy(*make_row(*range(0, 60, 3)))
        assert len([segment for segment in replica.log.segments if segment.copied is not None]) > 3
        for how in ("kill", "cut_power"):
            restart(replica, how)
        assert replica.log.end_offset == 58


def test_gaps_that_came_after_a_checkpoint_without_any_are_found() -> None:
    replica = make_replica(0, 1)
    replica.checkpoint()
    replica.copy(*make_row(10))
    replica.flush()
    restart(replica)
    assert replica.log.end_offset == 11


def test_a_gap_wider_than_an_index_entry_allows_is_accepted() -> None:
    wide = 3 << 31
    replica = FollowerLogHarness()
    replica.copy(*make_row(0, wide, wide + 1))
    replica.copy(*make_row(wide + 2, 2 * wide))
    replica.flush()
    replica.checkpoint()
    replica.check()
    for how in ("kill", "cut_power"):
        restart(replica, how)
    assert replica.log.end_offset == 2 * wide + 1
    found = replica.run(replica.log.max_timestamp())
    assert found is not None
    assert found.offset == 2 * wide


def test_a_flipped_bit_in_an_offset_is_found_in_a_copied_segment() -> None:
    for batch in range(4):
        replica = make_replica(0, 5, 6, 7)
        replica.checkpoint()
        replica.kill()
        position = sum(len(held.data) for held in replica.held[:batch]) + 7
        replica.world.disk.flip_bit(f"{FOLDER}/{0:020d}.log", position, 5)
        replica.open()
        replica.scrub()
        assert replica.log.quarantined is not None


def test_a_gap_that_was_lost_below_the_flushed_point_is_damage() -> None:
    replica = make_replica(0, 5, 6)
    replica.kill()
    replica.world.disk.flip_bit(GAPS_FILE, 3)
    replica.open()
    assert replica.log.quarantined is not None


def test_gaps_that_are_missing_altogether_are_damage() -> None:
    replica = make_replica(0, 5, 6)
    replica.checkpoint()
    replica.kill()
    replica.world.disk.remove(GAPS_FILE)
    replica.open()
    assert replica.log.quarantined is not None


def test_a_gap_whose_batch_was_lost_is_removed_for_another_leader() -> None:
    for seed in range(30):
        replica = FollowerLogHarness(seed)
        replica.copy(*make_row(0, 1))
        replica.flush()
        replica.copy(*make_row(10, 20))
        replica.cut_power()
        replica.open()
        replica.check()
        replica.forget_what_was_lost()
        replica.copy(*make_row(replica.log.end_offset, replica.log.end_offset + 30, epoch=1))
        replica.flush()
        restart(replica)


def test_a_new_leader_continues_the_segment_that_it_replicated() -> None:
    replica = make_replica(0, 5)
    data = memoryview(build_batch([BatchRecord(value=b"mine")]))
    assert replica.log.append(data, parse_header(data), 3) == 6
    replica.flush()
    for _ in range(2):
        replica.cut_power()
        replica.open()
        assert replica.log.quarantined is None
        assert (replica.log.end_offset, len(replica.log.segments)) == (7, 1)
        assert replica.batches()[-1] == bytes(data)


@pytest.mark.parametrize("file", ["*.log", "*.copied-gaps"])
def test_a_full_disk_leaves_the_log_as_it_was(file: str) -> None:
    for seed in range(20):
        replica = FollowerLogHarness(seed)
        replica.copy(*make_row(0, 5))
        replica.world.disk.fail_next("append", file, error=28)
        with pytest.raises(DiskFull):
            replica.log.append_as_follower(check_follower_batches(memoryview(bytes_of(*make_row(9, 12)))))
        assert replica.log.end_offset == 6
        replica.copy(*make_row(6, 12))
        replica.flush()
        replica.check()
        restart(replica, "cut_power" if seed % 2 else "kill")
        assert replica.log.end_offset == 13


@pytest.mark.parametrize("file", ["*.log", "*.copied-gaps"])
def test_a_disk_failure_fails_the_log(file: str) -> None:
    replica = make_replica(0, 5)
    replica.world.disk.fail_next("append", file)
    with pytest.raises(DiskFailed):
        replica.log.append_as_follower(check_follower_batches(memoryview(bytes_of(*make_row(9, 12)))))
    assert replica.log.failed is not None


def test_a_failed_sync_of_gaps_fails_the_log() -> None:
    replica = make_replica(0)
    replica.copy(*make_row(5))
    replica.world.disk.fail_next("sync", "*.copied-gaps")
    with pytest.raises(Exception, match="failed"):
        replica.flush()
    assert (replica.log.flushed_offset, replica.log.failed is not None) == (1, True)


def test_a_replicated_log_can_be_truncated_anywhere() -> None:
    offsets = (2, 3, 10, 11, 12, 40, 60, 61, 90)
    for offset in range(95):
        replica = make_replica(*offsets, config=replace(SMALL, segment_bytes=500))
        if offset % 2:
            replica.checkpoint()
        replica.truncate(offset)
        replica.check()
        restart(replica, "kill" if offset % 3 else "cut_power")
        replica.copy(*make_row(replica.log.end_offset, replica.log.end_offset + 2, epoch=1))
        replica.flush()
        restart(replica)


def test_a_copied_log_is_compacted_like_any_other() -> None:
    config = replace(COMPACT, segment_bytes=700)
    leader, follower = CompactedLogHarness(config=config), CompactedLogHarness(1, config)
    for number in range(40):
        leader.put((b"%d" % (number % 13), b"x" * 30))
    leader.roll()
    leader.clean()
    for number in range(5):
        leader.put((b"%d" % number, b"new"))
    while follower.log.end_offset < leader.log.end_offset:
        follower.log.append_as_follower(check_follower_batches(memoryview(leader.read(follower.log.end_offset, 300))))
    assert follower.lines() == leader.lines()
    follower.roll()
    leader.roll()
    follower.checkpoint()
    assert follower.run(follower.store.cleaner.clean(follower.log))
    assert leader.clean()
    assert follower.lines() == leader.lines()
    assert not [name for name in follower.world.disk.list(FOLDER) if name.endswith(".copied-gaps")]
    follower.cut_power()
    follower.open()
    assert follower.lines() == leader.lines()
    assert follower.log.end_offset == leader.log.end_offset


def test_reading_and_copying_go_on_beside_a_flush() -> None:
    replica = FollowerLogHarness()

    async def work() -> None:
        for offset in range(0, 100, 4):
            replica.copy(*make_row(offset, offset + 2))
            flush = asyncio.ensure_future(replica.store.flusher.flush(replica.log))
            await asyncio.sleep(0.0001)
            if offset % 8:
                await flush
        await replica.store.flusher.flush(replica.log)

    replica.run(work())
    replica.check()
    restart(replica)
