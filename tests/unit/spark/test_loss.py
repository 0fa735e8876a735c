from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest
from tests.unit.archive.archive_support import TOPIC, TOPIC_ID, add, archive_in, offsets_in, staged

from headrace.archive.errors import ArchiveOfAnotherTopic
from headrace.columns.offsets import OffsetBounds
from headrace.spark.offsets import PlannedRange
from headrace.spark.options import parse
from headrace.spark.reading import DataLost, fit_to_log, read_archived

FAIL = parse({"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}, streaming=True)
SKIP = msgspec.structs.replace(FAIL, on_data_loss="skip")


def orders(start: int, end: int) -> PlannedRange:
    return PlannedRange("orders", 3, start, end, "some-id")


def test_a_range_within_the_log_is_read_as_planned() -> None:
    assert fit_to_log(FAIL, orders(10, 20), OffsetBounds(10, 20)) == orders(10, 20)


def test_the_error_of_a_trimmed_range_names_offsets_and_cause() -> None:
    with pytest.raises(DataLost) as caught:
        fit_to_log(FAIL, orders(5, 20), OffsetBounds(12, 30))
    assert "orders[3], offsets 5 to 11 are lost: the log starts at offset 12" in caught.value.message
    assert "retention.ms" in caught.value.message
    assert "onDataLoss=skip" in caught.value.message


def test_a_range_outside_of_the_log_is_missing_as_a_whole() -> None:
    with pytest.raises(DataLost, match="offsets 5 to 9 are lost"):
        fit_to_log(FAIL, orders(5, 10), OffsetBounds(12, 30))


def test_a_log_that_ends_too_early_has_lost_records() -> None:
    with pytest.raises(DataLost, match="offsets 15 to 19 are lost: the log ends at offset 15"):
        fit_to_log(FAIL, orders(10, 20), OffsetBounds(0, 15))
    with pytest.raises(DataLost, match="offsets 10 to 19 are lost: the log ends at offset 4"):
        fit_to_log(FAIL, orders(10, 20), OffsetBounds(0, 4))
    with pytest.raises(DataLost, match="offsets 20 to 29 are lost: the log ends at offset 20"):
        fit_to_log(FAIL, orders(30, 20), OffsetBounds(0, 20))


def test_skipped_records_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert fit_to_log(SKIP, orders(5, 20), OffsetBounds(12, 30)) == orders(12, 20)
        assert fit_to_log(SKIP, orders(5, 10), OffsetBounds(12, 30)) is None
        assert fit_to_log(SKIP, orders(10, 20), OffsetBounds(0, 15)) == orders(10, 15)
        assert fit_to_log(SKIP, orders(10, 20), OffsetBounds(0, 4)) is None
    assert "skipped lost records range='orders[3], offsets 5 to 11'" in caplog.text


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Offsets 5 to 29 of partition 0, and 40 to 49."""
    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 5, 10, 30)
    catalogue.add(TOPIC_ID, [staged(catalogue, 0, 40, 49)], gaps=True)
    return tmp_path


def from_archive(archive: Path, start: int, end: int, log_start: int) -> list[int]:
    options = msgspec.structs.replace(FAIL, on_data_loss="archive", archive=str(archive))
    wanted = PlannedRange(TOPIC, 0, start, end, TOPIC_ID)
    assert fit_to_log(options, wanted, OffsetBounds(log_start, 100)) == wanted
    missing = msgspec.structs.replace(wanted, end=min(end, log_start))
    return offsets_in(read_archived(options, missing, log_start, ("offset",)))


def test_trimmed_records_are_left_to_the_archive(archive: Path) -> None:
    assert from_archive(archive, 7, 60, 20) == list(range(7, 20))
    assert from_archive(archive, 5, 30, 90) == list(range(5, 30))


@pytest.mark.parametrize(
    ("start", "log_start", "missing"),
    [
        (0, 20, "0 to 19"),
        (20, 35, "30 to 34"),
        (25, 45, "30 to 44"),
        (45, 60, "50 to 59"),
    ],
)
def test_records_missing_in_the_archive_too_are_lost(archive: Path, start: int, log_start: int, missing: str) -> None:
    with pytest.raises(
        DataLost, match=f"offsets {missing} are neither in the log, which starts at offset {log_start}, nor in"
    ):
        from_archive(archive, start, 100, log_start)


def test_an_archive_of_another_topic_with_this_name_is_not_used(archive: Path) -> None:
    options = msgspec.structs.replace(FAIL, on_data_loss="archive", archive=str(archive))
    with pytest.raises(ArchiveOfAnotherTopic):
        fit_to_log(options, PlannedRange(TOPIC, 0, 5, 100, "another-id"), OffsetBounds(20, 100))
