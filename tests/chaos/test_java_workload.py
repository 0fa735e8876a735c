"""Unit tests for the checks of the Java clients, and for the reasons why they cannot run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chaos import java_workload
from tests.chaos.java_workload import GROUPS, WRITER, check_java_clients, unavailable_reason
from tests.chaos.transcript import Log, Transcript

CLASSIC, CONSUMER = GROUPS
FINAL: dict[int, Log] = {0: [(0, b"java-writer-0"), (1, b"java-writer-1")]}
Lines = dict[str, list[list[Any]]]


@pytest.fixture
def lines() -> Lines:
    """The output of the clients in a run without violations."""
    first, second = "java-writer-0", "java-writer-1"
    group = [
        *(["found", 1, 2, 0, -1], ["poll", 5, 0, [[0, first]]], ["commit", 6, 0, 1], ["committed", 7, 6, 0]),
        *(["poll", 8, 0, [[1, second]]], ["commit", 9, 0, 2], ["committed", 10, 9, 0], ["found", 11, 12, 0, 2]),
        ["end", 99],
    ]
    writer = [
        *(["send", 1, 0, first], ["ack", 2, 0, first, 0], ["send", 3, 0, second], ["ack", 4, 0, second, 1]),
        ["end", 99],
    ]
    return {WRITER: writer, CLASSIC: [*group], CONSUMER: [*group]}


def judged(lines: Lines, folder: Path, final: dict[int, Log] = FINAL) -> list[str]:
    transcripts = {}
    for name, entries in lines.items():
        path = folder / name
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        transcripts[name] = Transcript(path)
        transcripts[name].read_on()
    return check_java_clients(transcripts, final)


def test_a_clean_run_is_found_clean(lines: Lines, tmp_path: Path) -> None:
    assert judged(lines, tmp_path) == []


def test_an_acknowledged_record_that_is_gone_is_found(lines: Lines, tmp_path: Path) -> None:
    found = judged(lines, tmp_path, {0: FINAL[0][:1]})
    assert any("unseen" in one and "java-writer-1" in one for one in found)


def test_a_doubled_record_is_found(lines: Lines, tmp_path: Path) -> None:
    assert any("duplicate" in one for one in judged(lines, tmp_path, {0: [*FINAL[0], (2, b"java-writer-0")]}))


@pytest.mark.parametrize("group", GROUPS)
def test_a_commit_that_one_of_the_groups_lost_is_found(lines: Lines, tmp_path: Path, group: str) -> None:
    lines[group][-2] = ["found", 11, 12, 0, 1]
    assert [f"commit lost in partition 0: {group} found 1" in one for one in judged(lines, tmp_path)] == [True]


@pytest.mark.parametrize("group", GROUPS)
def test_a_record_that_one_of_the_groups_skipped_is_found(lines: Lines, tmp_path: Path, group: str) -> None:
    lines[group][1] = ["error", 5, "nothing came"]
    assert [f"{group} committed 2, but no member received [0]" in one for one in judged(lines, tmp_path)] == [True]


def test_an_error_of_the_writer_and_a_group_that_ended_early_are_found(lines: Lines, tmp_path: Path) -> None:
    lines[WRITER].insert(-1, ["error", 98, "OutOfOrderSequenceException"])
    del lines[CLASSIC][-1]
    assert judged(lines, tmp_path) == [
        f"{CLASSIC} ended before it was stopped",
        f"{WRITER}: OutOfOrderSequenceException",
    ]


@pytest.fixture
def uncached() -> Iterator[None]:
    unavailable_reason.cache_clear()
    yield
    unavailable_reason.cache_clear()


@pytest.mark.usefixtures("uncached")
def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_workload, "JARS", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda command: f"/nowhere/{command}")
    assert "jars are not in" in (unavailable_reason() or "")
    unavailable_reason.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert unavailable_reason() == "java is not installed"
