"""Unit tests for the checks of the Spark query: they find planted violations, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.chaos.spark_workload import check_spark_copies
from tests.chaos.transcript import Log, Transcript

SOURCE: dict[int, Log] = {0: [(0, b"spark-writer-0")], 1: [(0, b"spark-writer-1")]}
COPIES: dict[int, Log] = {0: [(0, b"spark-writer-1"), (2, b"spark-writer-0")], 1: []}


@pytest.fixture
def writer(tmp_path: Path) -> Transcript:
    entries = [
        *(["send", 1, 0, "spark-writer-0"], ["ack", 2, 0, "spark-writer-0", 0]),
        *(["send", 3, 1, "spark-writer-1"], ["ack", 4, 1, "spark-writer-1", 0]),
        ["end", 99],
    ]
    path = tmp_path / "writer"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    transcript = Transcript(path)
    transcript.read_on()
    return transcript


def test_a_clean_run_is_found_clean(writer: Transcript) -> None:
    assert check_spark_copies(writer, SOURCE, COPIES) == []


def test_a_row_that_was_not_copied_is_found(writer: Transcript) -> None:
    found = check_spark_copies(writer, SOURCE, COPIES | {0: COPIES[0][:1]})
    assert found == ["Spark: copy lost: b'spark-writer-0' of the source is not among the copies"]


def test_a_row_that_was_copied_twice_is_found(writer: Transcript) -> None:
    found = check_spark_copies(writer, SOURCE, COPIES | {1: [(0, b"spark-writer-1")]})
    assert found == ["Spark: copied 2 times: b'spark-writer-1', 1 times in the source"]


def test_a_row_that_was_never_written_is_found(writer: Transcript) -> None:
    found = check_spark_copies(writer, SOURCE, COPIES | {1: [(0, b"spark-writer-9")]})
    assert found == ["Spark: copied 1 times: b'spark-writer-9', 0 times in the source"]


def test_an_acknowledged_record_that_the_source_lost_is_found(writer: Transcript) -> None:
    found = check_spark_copies(writer, SOURCE | {1: []}, {0: COPIES[0][1:], 1: []})
    assert ["unseen" in one and "of spark-source" in one for one in found] == [True]
