"""Unit tests for the checks: they find planted violations, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.chaos import checks, replicas
from tests.chaos.availability import Acknowledgements
from tests.chaos.faults import InjectedFault
from tests.chaos.names import FEEDER, MEMBERS, NUMBERS, READER, SOURCE, WRITERS
from tests.chaos.run_result import Options, RunResult
from tests.chaos.schedule import PlannedFault
from tests.chaos.transcript import Log, Transcript

Lines = dict[str, list[list[Any]]]


@pytest.fixture
def lines() -> Lines:
    """The output of the clients in a run without violations."""
    clients: Lines = {name: [["end", 99]] for name in (*WRITERS, READER, *MEMBERS)}
    clients["w1"] = [
        ["send", 1, 0, "w1-0"],
        ["send", 2, 0, "w1-1"],
        ["ack", 3, 0, "w1-0", 0],
        ["ack", 4, 0, "w1-1", 1],
        ["end", 99],
    ]
    clients[READER] = [["poll", 5, 0, [[0, "w1-0"]]], ["poll", 7, 0, [[1, "w1-1"]]], ["end", 99]]
    clients[MEMBERS[0]] = [
        ["poll", 5, 0, [[0, "w1-0"], [1, "w1-1"]]],
        ["commit", 6, 0, 2],
        ["committed", 7, 6, 0],
        ["found", 8, 9, 0, 2],
        ["end", 99],
    ]
    clients[FEEDER] = [["send", 1, 0, "0"], ["ack", 2, 0, "0", 0], ["end", 99]]
    return clients


FINAL: dict[str, dict[int, Log]] = {NUMBERS: {0: [(0, b"w1-0"), (1, b"w1-1")]}, SOURCE: {0: [(0, b"0")]}}


def violations(lines: Lines, final: dict[str, dict[int, Log]], folder: Path) -> list[str]:
    transcripts = {}
    for name, entries in lines.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        transcripts[name] = Transcript(path)
        transcripts[name].read_on()
    return checks.check_history(transcripts, final)


def test_a_clean_run_is_found_clean(lines: Lines, tmp_path: Path) -> None:
    assert violations(lines, FINAL, tmp_path) == []


def test_an_acknowledged_record_that_is_gone_is_found(lines: Lines, tmp_path: Path) -> None:
    found = violations(lines, FINAL | {NUMBERS: {0: [(0, b"w1-0")]}}, tmp_path)
    assert any("unseen" in one for one in found)
    assert any("vanished" in one for one in found)


def test_a_doubled_record_is_found(lines: Lines, tmp_path: Path) -> None:
    doubled: dict[int, Log] = {0: [*FINAL[NUMBERS][0], (2, b"w1-0")]}
    assert any("duplicate" in one for one in violations(lines, FINAL | {NUMBERS: doubled}, tmp_path))


def test_a_reader_that_skips_a_record_is_found(lines: Lines, tmp_path: Path) -> None:
    lines[READER][1] = ["poll", 7, 0, [[2, "w1-1"]]]
    assert any("nonmonotonic poll" in one for one in violations(lines, FINAL, tmp_path))


def test_a_commit_that_went_back_is_found(lines: Lines, tmp_path: Path) -> None:
    lines[MEMBERS[0]][3] = ["found", 8, 9, 0, -1]
    assert any("commit lost" in one for one in violations(lines, FINAL, tmp_path))


def test_a_writer_that_could_not_end_is_found(lines: Lines, tmp_path: Path) -> None:
    lines["w1"].insert(-1, ["error", 98, "3 records were neither acknowledged nor rejected"])
    assert violations(lines, FINAL, tmp_path) == ["w1: 3 records were neither acknowledged nor rejected"]


def test_copies_that_are_lost_doubled_or_aborted_are_found() -> None:
    assert checks.check_copies([b"1", b"2"], [b"2", b"1"]) == []
    assert "copy lost" in checks.check_copies([b"1", b"2"], [b"2"])[0]
    assert "copied 2 times" in checks.check_copies([b"1", b"2"], [b"2", b"1", b"2"])[0]
    assert "aborted read" in checks.check_copies([b"1"], [b"1", b"aborted 1"])[0]


def run_result_of(moments: list[float], nodes: tuple[str, ...]) -> RunResult:
    result = RunResult(Options(1, 60.0, Path(), session_seconds=3.0))
    fault = InjectedFault(PlannedFault("cut off", "leader", 10.0), nodes, 100.0, 110.0, lambda: None, healed=110.0)
    result.rounds.append([fault])
    result.acknowledgements = Acknowledgements((moment, 0) for moment in moments)
    return result


def test_a_fault_of_one_broker_that_stops_all_writes_is_found() -> None:
    assert "unavailable" in checks.check_availability(run_result_of([99.0, 111.0], ("b1",)))[0]
    assert checks.check_availability(run_result_of([99.0, 107.0, 111.0], ("b1",))) == []


def test_writes_may_stop_without_a_majority() -> None:
    assert checks.check_availability(run_result_of([99.0, 111.0], ("b1", "b2"))) == []


def test_a_stall_is_reported_for_all_partitions_and_for_the_worst_one() -> None:
    availability = Acknowledgements([(99.0, 0), (99.0, 1), (101.0, 0), (104.0, 0), (109.0, 1)]).availability(
        100.0, 105.0, until=110.0
    )
    assert (availability.acknowledged, availability.stall_seconds, availability.partition_stall_seconds) == (
        2,
        5.0,
        9.0,
    )


def write_log(folder: Path, *segments: bytes) -> Path:
    folder.mkdir()
    for number, content in enumerate(segments):
        (folder / f"{number:020}.log").write_bytes(content)
    return folder


def test_replicas_are_compared_as_logs_however_they_are_cut_into_segments(tmp_path: Path) -> None:
    folders = [write_log(tmp_path / "1", b"abc", b"def"), write_log(tmp_path / "2", b"abcd", b"ef")]
    assert replicas.compare({"topic-0": folders}, {}) == (1, 6, [])


def test_replicas_that_diverged_or_are_short_or_missing_are_found(tmp_path: Path) -> None:
    first = write_log(tmp_path / "1", b"abcdef")
    _, _, found = replicas.compare({"topic-0": [first, write_log(tmp_path / "2", b"abXdef")]}, {})
    assert "differ at byte 2" in found[0]
    _, _, found = replicas.compare({"topic-0": [first, write_log(tmp_path / "3", b"abc")]}, {})
    assert "differ in length" in found[0]
    _, _, found = replicas.compare({"topic-0": [first, tmp_path / "4"]}, {})
    assert "replica missing" in found[0]


def test_a_log_that_grows_while_brokers_stop_may_be_longer_but_not_different(tmp_path: Path) -> None:
    first = write_log(tmp_path / "1", b"abcdef")
    longer, other = write_log(tmp_path / "2", b"abcdefgh"), write_log(tmp_path / "3", b"abXdefgh")
    assert replicas.compare({}, {"topic-0": [first, longer]}) == (1, 6, [])
    _, _, found = replicas.compare({}, {"topic-0": [first, other]})
    assert "differ at byte 2" in found[0]
