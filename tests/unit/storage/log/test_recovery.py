"""After an unclean stop: the promised part is whole or reported, the unpromised tail is cut at a whole batch."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

import pytest
from tests.unit.storage.log_harness import (
    DATA,
    FIRST_SEGMENT,
    FOLDER,
    NO_DERIVED_STATE,
    TOPIC,
    LogHarness,
    ReplayRecorder,
    make_batch,
)

from headrace.runtime.disk import DiskFull
from headrace.storage.config import LogConfig
from headrace.storage.errors import LogQuarantined
from headrace.storage.log.recovery import STEP_BYTES
from headrace.storage.store.data_folder import MARKER
from headrace.storage.store.log_store import Opening, open_store
from headrace.testkit.disk import SimDisk

FLUSHED = f"{DATA}/flushed-offsets"


def make_bench(flushed: int = 10, **config: Any) -> LogHarness:
    bench = LogHarness(config=LogConfig(**{"index_interval_bytes": 300, **config}))
    bench.append_many(flushed)
    return bench


def reopen_with_tail(bench: LogHarness, tail: bytes, path: str = FIRST_SEGMENT) -> None:
    bench.kill()
    file = bench.world.disk.open(path)
    file.append([tail])
    file.sync()
    bench.open()


@pytest.mark.parametrize(
    "tail",
    [b"\0", b"\0" * 61, b"\0" * 5000, b"garbage" * 50, b"\xff" * 300],
    ids=["one zero", "a zero header", "many zeros", "garbage", "ones"],
)
def test_a_tail_that_is_no_batch_is_cut_off(tail: bytes) -> None:
    bench = make_bench()
    size = bench.log.size_bytes
    reopen_with_tail(bench, tail)
    bench.check()
    assert (bench.log.end_offset, bench.world.disk.open(FIRST_SEGMENT).size()) == (10, size)
    bench.append_many(3)
    bench.cut_power()
    bench.open()
    bench.check()
    assert bench.log.end_offset == 13


def test_a_batch_torn_at_any_byte_is_cut_off_whole() -> None:
    bench = make_bench(3)
    batch = bench.world.disk.read(FIRST_SEGMENT)[-bench.batches[-1].size_bytes :]
    torn = bytearray(batch)
    torn[7] = 3  # as the next offset would be
    for size in range(1, len(torn)):
        reopen_with_tail(bench, bytes(torn[:size]))
        assert bench.log.end_offset == 3
    bench.check()


def test_a_whole_batch_that_was_not_flushed_is_kept_and_made_durable() -> None:
    bench = make_bench(3)
    bench.append(b"not flushed")
    bench.kill()
    bench.open()
    assert (bench.log.end_offset, bench.log.flushed_offset) == (4, 4)
    bench.cut_power()
    bench.open()
    bench.check()
    assert bench.log.end_offset == 4


def test_a_batch_with_another_offset_than_the_next_is_cut_off() -> None:
    bench = make_bench(3)
    reopen_with_tail(bench, bench.world.disk.read(FIRST_SEGMENT))
    bench.check()
    assert bench.log.end_offset == 3


def test_segments_behind_the_cut_are_removed() -> None:
    bench = make_bench(2, segment_bytes=400)
    for _ in range(6):
        bench.append(b"not flushed" * 10)
    bases = [segment.base_offset for segment in bench.log.segments]
    bench.kill()
    bench.world.disk.flip_bit(f"{FOLDER}/{bases[1]:020d}.log", 70)
    bench.open()
    bench.check()
    assert bench.log.end_offset == bases[1]
    assert [name for name in bench.world.disk.list(FOLDER) if name.endswith(".log")] == [
        f"{base:020d}.log" for base in bases[:2]
    ]


@pytest.mark.parametrize("byte", [0, 9, 16, 18, 25, 61, 120])
def test_damage_below_the_flushed_point_is_quarantined(byte: int, caplog: pytest.LogCaptureFixture) -> None:
    bench = make_bench(10)
    bench.kill()
    position = 4 * bench.batches[0].size_bytes
    bench.world.disk.flip_bit(FIRST_SEGMENT, position + byte, bit=2)
    before = bench.world.disk.read(FIRST_SEGMENT)
    with caplog.at_level(logging.ERROR):
        bench.open()
    report = bench.log.quarantined
    assert report is not None
    assert (report.path, report.position, report.offset) == (FIRST_SEGMENT, position, 4)
    assert FIRST_SEGMENT in caplog.text
    assert f"byte {position}" in caplog.text
    for rejected in (bench.append, lambda: bench.log.read(0, 100, 4), bench.checkpoint):
        with pytest.raises(LogQuarantined):
            rejected()
    assert bench.world.disk.read(FIRST_SEGMENT) == before  # I22: kept for inspection


def test_damage_below_the_end_of_an_earlier_recovery_is_quarantined() -> None:
    bench = make_bench()
    bench.kill()
    bench.world.disk.remove(FLUSHED)  # as after a power failure: it is never synced
    bench.open()
    assert (bench.log.end_offset, bench.log.flushed_offset) == (10, 10)
    bench.kill()
    bench.world.disk.flip_bit(FIRST_SEGMENT, 79)
    bench.open()
    assert bench.log.quarantined is not None
    assert bench.log.quarantined.offset == 0


def test_a_log_that_ends_before_its_flushed_point_is_quarantined() -> None:
    bench = make_bench(10)
    bench.kill()
    bench.world.disk.open(FIRST_SEGMENT).truncate(5 * bench.batches[0].size_bytes)
    bench.open()
    assert bench.log.quarantined is not None
    assert bench.log.quarantined.offset == 5
    assert "durable up to offset 10" in bench.log.quarantined.reason


def test_a_segment_that_is_missing_or_short_below_the_checkpoint_is_quarantined() -> None:
    for damage in (SimDisk.remove, lambda disk, path: disk.open(path).truncate(100)):
        bench = make_bench(20, segment_bytes=1000)
        bench.checkpoint()
        bench.kill()
        damage(bench.world.disk, f"{FOLDER}/{bench.log.segments[1].base_offset:020d}.log")
        bench.open()
        assert bench.log.quarantined is not None


def test_bytes_that_a_full_disk_left_after_a_rolled_segment_are_not_damage() -> None:
    for seed in range(40):
        bench = LogHarness(seed, LogConfig(segment_bytes=1000))
        bench.append_many(3)
        room, bench.world.disk.capacity_bytes = bench.world.disk.capacity_bytes, 0
        with pytest.raises(DiskFull):
            bench.append(b"no room" * 20)
        bench.world.disk.capacity_bytes = room
        bench.log.roll()
        if seed % 2:
            bench.append_many(1)
        else:
            bench.checkpoint()
        bench.cut_power()
        bench.open()
        bench.check()


def test_quarantine_survives_restarts_and_marks_nothing_clean() -> None:
    bench = make_bench(10)
    bench.kill()
    bench.world.disk.flip_bit(FIRST_SEGMENT, 400)
    bench.open()
    bench.stop()
    bench.open()
    assert bench.log.quarantined is not None


def test_recovery_reads_only_what_lies_behind_the_checkpoint() -> None:
    bench = make_bench(10)
    bench.checkpoint()
    bench.append_many(5)
    bench.kill()
    bench.world.disk.flip_bit(FIRST_SEGMENT, 70)
    bench.open()
    assert (bench.log.quarantined, bench.log.end_offset) == (None, 15)
    assert len(bench.state.seen) == 15


def test_recovery_without_an_undamaged_checkpoint_scans_the_whole_log() -> None:
    bench = make_bench(10)
    bench.checkpoint()
    bench.append_many(5)
    bench.checkpoint()
    bench.kill()
    for name in bench.world.disk.list(FOLDER):
        if name.endswith(".checkpoint"):
            bench.world.disk.flip_bit(f"{FOLDER}/{name}", 20)
    bench.open()
    bench.check()
    assert (bench.log.end_offset, bench.log.checkpoint_offset) == (15, -1)


def test_a_lost_flushed_offset_falls_back_to_the_checkpoint() -> None:
    bench = make_bench(10)
    bench.checkpoint()
    bench.append_many(5)
    bench.kill()
    bench.world.disk.open(FLUSHED).truncate(0)
    bench.world.disk.flip_bit(FIRST_SEGMENT, 12 * bench.batches[0].size_bytes + 70)
    bench.open()
    assert (bench.log.quarantined, bench.log.end_offset) == (None, 12)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["removed", "short", "odd", "long"])
def test_indexes_that_do_not_fit_are_rebuilt(suffix: str, damage: str) -> None:
    bench = make_bench(40, segment_bytes=2000)
    bench.stop()
    bench.open()
    saved = {path: bench.world.disk.read(path) for path in index_paths(bench, suffix)}
    bench.kill()
    for path, data in saved.items():
        if damage == "removed":
            bench.world.disk.remove(path)
        else:
            bench.world.disk.open(path).truncate({"short": 0, "odd": 5, "long": len(data) + 24}[damage])
    bench.open()
    bench.check()
    bench.checkpoint()
    assert {path: bench.world.disk.read(path) for path in index_paths(bench, suffix)} == saved


def index_paths(bench: LogHarness, suffix: str) -> list[str]:
    return [f"{FOLDER}/{name}" for name in bench.world.disk.list(FOLDER) if name.endswith(suffix)]


def test_index_entries_written_after_the_checkpoint_are_dropped_and_made_again() -> None:
    bench = make_bench(10)
    bench.checkpoint()
    bench.append_many(10)
    bench.log.active.index.save()
    bench.kill()
    bench.open()
    bench.check()
    for offset in range(20):
        assert bench.records(offset) == bench.model[offset:]


def test_a_clean_stop_needs_no_scan() -> None:
    bench = make_bench(30, segment_bytes=1000)
    bench.stop()
    bench.world.disk.fail_next("pread", f"{FOLDER}/*.log")
    bench.open()
    assert bench.store.broker_epoch is not None
    assert bench.store.broker_epoch == 7
    assert (bench.log.end_offset, len(bench.state.seen)) == (30, 30)


def test_the_marker_of_a_clean_stop_is_gone_as_soon_as_the_folder_is_opened() -> None:
    bench = make_bench(3)
    bench.stop()
    bench.open()
    bench.cut_power()
    assert not bench.world.disk.exists(f"{DATA}/{MARKER}")
    bench.open()
    assert bench.store.broker_epoch is None


def test_a_long_scan_goes_in_steps() -> None:
    bench = LogHarness(config=LogConfig(segment_bytes=STEP_BYTES))
    for _ in range(5):
        bench.append(b"x" * (STEP_BYTES // 2))
    bench.flush()
    bench.kill()
    bench.open()
    assert (bench.log.end_offset, len(bench.state.seen)) == (5, 5)


def test_many_logs_are_recovered_without_holding_all_their_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(10)
    topics = [UUID(int=number) for number in range(1, 9)]
    for log in bench.run(
        bench.store.create_all([(topic, 0, Opening(LogConfig(), NO_DERIVED_STATE)) for topic in topics])
    ):
        for _ in range(5):
            log.append(*make_batch(b"value"), 0)
        bench.run(bench.store.flusher.flush(log))
    bench.kill()
    monkeypatch.setattr("headrace.storage.store.log_store.BATCHES_PER_CALL", 8)
    store = bench.run(open_store(bench.world.disk, DATA, bench.world.clock))
    states = {topic: ReplayRecorder() for topic in [*topics, TOPIC]}
    bench.run(store.open_all(lambda topic, _: Opening(LogConfig(), states[topic])))
    assert [len(states[topic].seen) for topic in [*topics, TOPIC]] == [5] * 8 + [10]
    assert all(log.quarantined is None for log in store.logs.values())


def test_a_batch_longer_than_a_chunk_is_checked_like_any_other() -> None:
    bench = LogHarness(config=LogConfig())
    bench.append(b"x" * 3_000_000)
    bench.flush()
    bench.kill()
    bench.world.disk.flip_bit(FIRST_SEGMENT, 2_500_000)
    bench.open()
    assert bench.log.quarantined is not None
    assert "CRC" in bench.log.quarantined.reason


def test_a_half_finished_deletion_is_completed_after_a_crash() -> None:
    bench = make_bench(3)
    bench.kill()
    for name in (f"{9:020d}.log.deleted", f"{9:020d}.checkpoint.tmp"):
        bench.world.disk.open(f"{FOLDER}/{name}", create=True)
    bench.open()
    assert all(name.endswith(".log") for name in bench.world.disk.list(FOLDER))
