"""`headrace log verify` finds every kind of damage and its position; a torn end that was not flushed is no damage."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.storage.stored_log import StoredLog, batch_of

from headrace.cli.main import main
from headrace.runtime.disk import SystemDisk
from headrace.storage.log.checkpoint import write_start_offset
from headrace.storage.segments.gaps import CleanedGaps
from headrace.wire.batches.batch import HEADER_SIZE, BatchRecord, Marker, build_batch, build_marker, set_crc


def verify(log: StoredLog, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[dict[str, Any]], str]:
    before = {path: path.read_bytes() for path in log.folder.iterdir()}
    exit_code = main(["log", "verify", "--data", str(log.data), *options])
    captured = capsys.readouterr()
    assert {path: path.read_bytes() for path in log.folder.iterdir()} == before
    return exit_code, [json.loads(line) for line in captured.out.splitlines()], captured.err


def test_an_intact_folder_has_no_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marker = build_marker(7, 0, Marker(True, 0), 1000)
    log = StoredLog(
        tmp_path,
        [batch_of(b"one", b"two"), batch_of(b"three", compression=4), marker],
        [batch_of(b"four", producer_id=7, producer_epoch=0, base_sequence=0)],
    )
    log.checkpoint(4, log.first.stat().st_size)
    exit_code, rows, err = verify(log, capsys)
    assert (exit_code, rows) == (0, [])
    assert "1 log, 2 segments, 4 batches, 5 records" in err
    assert "no damage" in err


def test_a_flipped_bit_is_found_with_file_and_position(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StoredLog(tmp_path)
    position = log.positions[0][1]
    log.spoil(log.first, position + HEADER_SIZE + 3)
    exit_code, (row,), _ = verify(log, capsys)
    assert exit_code == 1
    assert (row["log"], row["verdict"], row["file"]) == ("orders[0]", "damaged", str(log.first))
    assert (row["position"], row["offset"]) == (position, 2)
    assert "crc" in row["what"]


def test_a_wrong_base_offset_is_found_although_the_checksum_does_not_cover_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = StoredLog(tmp_path)
    log.spoil(log.first, log.positions[0][1] + 7, b"\x05")
    exit_code, rows, _ = verify(log, capsys)
    assert exit_code == 1
    assert "base offset is 5, not 2" in rows[0]["what"]


def test_verification_continues_with_the_next_segment_after_an_unreadable_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = StoredLog(tmp_path, [batch_of(b"one"), batch_of(b"two")], [batch_of(b"three")])
    log.spoil(log.first, log.positions[0][1] + 16, b"\x07")
    log.spoil(log.paths[1], HEADER_SIZE + 3)
    exit_code, rows, _ = verify(log, capsys)
    assert exit_code == 1
    assert [(Path(row["file"]).name, row["position"]) for row in rows] == [
        (log.first.name, log.positions[0][1]),
        (log.paths[1].name, 0),
        (log.paths[1].name, 0),
    ]
    assert "magic is 7" in rows[0]["what"]
    assert "begins at 2, not at 1" in rows[1]["what"]


def test_records_that_contradict_the_header_are_found_although_the_checksum_matches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = batch_of(b"one", b"two")
    batch[HEADER_SIZE] = 2  # the length of the first record
    set_crc(memoryview(batch))
    exit_code, rows, _ = verify(StoredLog(tmp_path, [batch]), capsys)
    assert exit_code == 1
    assert "record" in rows[0]["what"]


@pytest.mark.parametrize(("suffix", "position"), [(".index", 3), (".index", 7), (".timeindex", 7), (".timeindex", 11)])
def test_an_index_entry_without_a_batch_is_found(
    suffix: str, position: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = StoredLog(tmp_path)
    path = log.first.with_suffix(suffix)
    log.spoil(path, position, b"\0")
    exit_code, (row,), _ = verify(log, capsys)
    assert exit_code == 1
    assert (row["file"], row["position"]) == (str(path), 0)


def test_an_index_beyond_the_log_or_with_an_incomplete_entry_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = StoredLog(tmp_path)
    path = log.first.with_suffix(".index")
    path.write_bytes(path.read_bytes() + b"\0\0\0\x50\0\0\x20\0" + b"\0\0")
    exit_code, rows, _ = verify(log, capsys)
    assert exit_code == 1
    assert [row["position"] for row in rows] == [8, 16]


def test_a_torn_end_after_the_flushed_offset_is_not_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StoredLog(tmp_path)
    log.first.write_bytes(log.first.read_bytes()[:-5])
    assert verify(log, capsys)[0] == 1
    log.flush(3)
    exit_code, (row,), err = verify(log, capsys)
    assert (exit_code, row["verdict"], row["offset"]) == (0, "torn", 3)
    assert "no damage" in err


def test_without_a_flushed_offset_every_fault_is_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StoredLog(tmp_path)
    log.first.write_bytes(log.first.read_bytes()[:-5])
    (tmp_path / "flushed-offsets").unlink()
    assert verify(log, capsys)[0] == 1


def test_a_log_that_ends_before_the_flushed_offset_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = StoredLog(tmp_path, [batch_of(b"one")])
    log.flush(2)
    exit_code, (row,), _ = verify(log, capsys)
    assert exit_code == 1
    assert "ends at offset 1, but was flushed up to 2" in row["what"]
    write_start_offset(SystemDisk(), str(log.folder), 2)
    assert verify(log, capsys)[0] == 0


def test_a_truncated_segment_and_a_broken_checkpoint_are_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = StoredLog(tmp_path)
    checkpoint = log.checkpoint(4, log.first.stat().st_size + 1)
    exit_code, (row,), _ = verify(log, capsys)
    assert exit_code == 1
    assert "the checkpoint says" in row["what"]
    log.spoil(checkpoint, 12)
    exit_code, (row,), _ = verify(log, capsys)
    assert (exit_code, row["file"]) == (1, str(checkpoint))


def sparse(*offsets: int) -> bytearray:
    return build_batch([BatchRecord(key=b"k", value=b"v", offset=offset) for offset in offsets], base_offset=offsets[0])


def test_a_compacted_segment_has_exactly_the_listed_gaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StoredLog(tmp_path, [batch_of(b"one")])
    (log.folder / f"{12:020d}.log").touch()
    log.first.write_bytes(sparse(1, 3) + sparse(7, 9))
    log.flush(12)
    assert verify(log, capsys)[0] == 1
    gaps = CleanedGaps(0, 12)
    gaps.add_batch(1, 4)
    gaps.add_batch(7, 10)
    listed = log.first.with_suffix(".gaps")
    listed.write_bytes(gaps.encode())
    assert verify(log, capsys)[:2] == (0, [])
    log.first.write_bytes(sparse(1, 3) + sparse(8, 9))
    exit_code, rows, _ = verify(log, capsys)
    assert exit_code == 1
    assert "base offset is 8, not 7" in rows[0]["what"]
    log.spoil(listed, 20)
    exit_code, (row,), _ = verify(log, capsys)
    assert (exit_code, row["file"]) == (1, str(listed))


@pytest.mark.parametrize("rest", [bytes(batch_of(b"never"))[:-3], bytes(30)])
def test_the_rest_of_a_failed_append_is_not_damage(
    rest: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = StoredLog(tmp_path, [batch_of(b"one")], [batch_of(b"two")])
    position = log.first.stat().st_size
    log.first.write_bytes(log.first.read_bytes() + rest)
    exit_code, (row,), _ = verify(log, capsys)
    assert (exit_code, row["verdict"], row["position"]) == (0, "torn", position)


def test_a_batch_repeated_in_the_next_segment_is_not_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StoredLog(tmp_path, [batch_of(b"one")], [batch_of(b"two")])
    log.first.write_bytes(log.first.read_bytes() + sparse(1))
    exit_code, (row,), err = verify(log, capsys)
    assert (exit_code, row["verdict"]) == (0, "torn")
    assert "2 batches" in err


def test_a_running_broker_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StoredLog(tmp_path)
    with (tmp_path / ".lock").open("w") as lock:
        assert "a broker is using" not in verify(log, capsys)[2]
        fcntl.flock(lock, fcntl.LOCK_EX)
        exit_code, _, err = verify(log, capsys)
    assert exit_code == 0
    assert "a broker is using" in err


def test_verification_can_be_limited_to_a_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StoredLog(tmp_path)
    (tmp_path / "logs" / f"{7:032x}-0").mkdir()
    assert "2 logs" in verify(log, capsys)[2]
    assert "1 log," in verify(log, capsys, "--topic", "orders")[2]
    exit_code, _, err = verify(log, capsys, "--topic", "nope")
    assert exit_code == 1
    assert "orders" in err


def test_a_folder_that_is_not_a_data_folder_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "verify", "--data", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
