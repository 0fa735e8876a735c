"""`headrace log dump` shows what lies in the files of a data folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.stored_log import StoredLog, batch_of

from headrace.cli.main import main
from headrace.wire.batches.batch import HEADER_SIZE, TRANSACTIONAL, Marker, build_marker


def dump(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[dict[str, Any]]:
    assert main(["log", "dump", *map(str, arguments)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return [json.loads(line) for line in captured.out.splitlines()]


def test_batches_are_shown_with_all_that_their_headers_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    producing = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 5, "attributes": TRANSACTIONAL}
    log = StoredLog(
        tmp_path,
        [batch_of(b"one", b"two", timestamp_ms=77, compression=1, **producing)],
        [build_marker(7, 2, Marker(False, 0), 78), build_marker(7, 2, Marker(True, 0), 79)],
    )
    first, abort, commit = dump(capsys, log.folder)
    assert first == {
        "base_offset": 0,
        "last_offset": 1,
        "records": 2,
        "position": 0,
        "size_bytes": log.first.stat().st_size,
        "crc": "ok",
        "compression": "gzip",
        "producer_id": 7,
        "producer_epoch": 2,
        "base_sequence": 5,
        "transactional": True,
        "control": None,
        "leader_epoch": 0,
        "base_timestamp": 77,
        "max_timestamp": 77,
        "timestamp_type": "create",
    }
    assert [(row["base_offset"], row["control"]) for row in (abort, commit)] == [(2, "abort"), (3, "commit")]


def test_a_partition_is_found_by_its_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StoredLog(tmp_path)
    assert dump(capsys, "--data", tmp_path, "--topic", "orders") == dump(capsys, log.first, "--json")
    assert main(["log", "dump", "--data", str(tmp_path), "--topic", "orders", "--partition", "1"]) == 1
    assert "no partition 1" in capsys.readouterr().err


def test_records_are_shown_from_an_offset_on_and_so_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StoredLog(tmp_path, [batch_of(b"one", b"two"), batch_of(b"three", b"\xff")])
    rows = dump(capsys, log.first, "--records", "--from", "1")
    assert [(row["offset"], row["value"], row["batch"]) for row in rows] == [
        (1, "two", 0),
        (2, "three", 2),
        (3, {"base64": "/w=="}, 2),
    ]
    assert [row["offset"] for row in dump(capsys, log.first, "--records", "--from", "1", "--limit", "2")] == [1, 2]
    assert [row["base_offset"] for row in dump(capsys, log.first, "--from", "2")] == [2]


def test_a_table_shows_how_long_values_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StoredLog(tmp_path, [batch_of(b"a\nb" + b"x" * 100)])
    assert main(["log", "dump", str(log.first), "--records", "-o", "table"]) == 0
    headings, line = capsys.readouterr().out.splitlines()
    assert headings.split() == ["OFFSET", "TIMESTAMP", "CONTROL", "KEY", "VALUE", "HEADERS"]
    assert "a\N{MIDDLE DOT}b" + "x" * 57 + "\N{HORIZONTAL ELLIPSIS}" in line


def test_damage_is_told_and_the_rest_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StoredLog(tmp_path)
    log.spoil(log.first, HEADER_SIZE + 3)
    for options, shown in ((["--records"], [2, 3]), ([], [0, 2, 3])):
        assert main(["log", "dump", str(log.first), *options]) == 1
        captured = capsys.readouterr()
        rows = [json.loads(line) for line in captured.out.splitlines()]
        assert [row["offset" if options else "base_offset"] for row in rows] == shown
        assert f"{log.first} at byte 0" in captured.err
    log.spoil(log.first, log.positions[0][2] + 16, b"\0")
    assert main(["log", "dump", str(log.first)]) == 1
    assert "magic is 0" in capsys.readouterr().err


def test_indexes_and_checkpoints_are_shown_shortly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StoredLog(tmp_path, [batch_of(b"one")], [batch_of(b"two"), batch_of(b"three", timestamp_ms=88)])
    position = log.positions[1][1]
    index, time_index = (log.paths[1].with_suffix(suffix) for suffix in (".index", ".timeindex"))
    assert dump(capsys, index) == [{"entry": 0, "offset": 2, "position": position}]
    assert dump(capsys, time_index) == [{"entry": 0, "timestamp": 88, "offset": 2}]
    (row,) = dump(capsys, log.checkpoint(3, 50))
    assert (row["offset"], row["segments"], row["epochs"], row["whole"]) == (3, [0], ["0@0"], True)


@pytest.mark.parametrize("arguments", [[], ["{path}", "--topic", "orders"], ["{data}/registry.db"], ["/nowhere.log"]])
def test_wrong_usage_is_one_line(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StoredLog(tmp_path)
    given = [argument.format(path=log.first, data=tmp_path) for argument in arguments]
    assert main(["log", "dump", *given]) == 2
    assert capsys.readouterr().err.count("\n") == 1
