"""The planning of a stream, with fake brokers."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, LongType, StructType

from headrace.client.metadata import TopicPartition
from headrace.columns.offsets import OffsetBounds
from headrace.model.errors import UnknownTopicOrPartition
from headrace.spark import planning, stream
from headrace.spark import planning as progress
from headrace.spark.offsets import OffsetMap, PlannedRange
from headrace.spark.planning import LogView
from headrace.spark.reading import DataLost
from headrace.spark.stream import StreamReader

SCHEMA = StructType().add("offset", LongType()).add("value", BinaryType())
OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders", "startingOffsets": "earliest"}
ALL = ReadAllAvailable()


class ManualClock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)


class Logs:
    """The responses of the brokers, and the committed offsets of the group."""

    def __init__(self) -> None:
        self.bounds = {
            TopicPartition("orders", 0): OffsetBounds(0, 100),
            TopicPartition("orders", 1): OffsetBounds(0, 50),
        }
        self.ids = {"orders": "first"}
        self.missing: tuple[str, ...] = ()
        self.commits: list[OffsetMap] = []

    def set(self, partition: int, earliest: int, latest: int) -> None:
        self.bounds[TopicPartition("orders", partition)] = OffsetBounds(earliest, latest)

    def look(self, _options: object) -> LogView:
        return LogView(dict(self.bounds), dict(self.ids), self.missing)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    found = Logs()
    monkeypatch.setattr(stream, "describe_log", found.look)
    monkeypatch.setattr(progress.GroupProgress, "commit", lambda _self, offsets: found.commits.append(offsets))
    return found


def reader(clock: ManualClock | None = None, **more: str) -> StreamReader:
    return StreamReader({**OPTIONS, **more}, SCHEMA, clock)


def offsets(*numbers: int, topic_id: str | None = "first") -> dict[str, Any]:
    written: dict[str, Any] = {"@ids": {"orders": topic_id}} if topic_id else {}
    return {**written, "orders": {str(partition): number for partition, number in enumerate(numbers)}}


def planned(source: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int, int]]:
    ranges: list[PlannedRange] = [piece.value for piece in source.partitions(start, end)]
    return [(one.partition, one.start, one.end) for one in ranges]


def test_a_stream_goes_from_its_start_to_the_end_of_the_logs(logs: Logs) -> None:
    source = reader()
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    assert (start, end) == (offsets(0, 0), offsets(100, 50))
    assert planned(source, start, end) == [(0, 0, 100), (1, 0, 50)]
    assert source.latestOffset(end, ALL) == end
    assert source.reportLatestOffset() == end


def test_progress_is_committed_when_a_batch_is_processed(logs: Logs) -> None:
    source = reader()
    source.latestOffset(offsets(7, 8), ALL)
    assert logs.commits == [{TopicPartition("orders", 0): 7, TopicPartition("orders", 1): 8}]


def test_a_limit_applies_until_everything_is_read(logs: Logs) -> None:
    source = reader(maxOffsetsPerTrigger="60")
    limit = source.getDefaultReadLimit()
    assert limit == ReadMaxRows(60)
    first = source.latestOffset(offsets(0, 0), limit)
    assert first == offsets(40, 20)
    assert source.latestOffset(first, ALL) == offsets(100, 50)


def test_available_now_ends_at_the_offsets_of_its_start(logs: Logs) -> None:
    source = reader(maxOffsetsPerTrigger="100", minOffsetsPerTrigger="1000")
    source.prepareForTriggerAvailableNow()
    logs.set(0, 0, 500)
    at = offsets(0, 0)
    for _ in range(3):
        at = source.latestOffset(at, source.getDefaultReadLimit())
    assert at == offsets(100, 50)


def test_few_records_wait_for_more_or_for_the_timeout(logs: Logs) -> None:
    clock = ManualClock()
    source = reader(clock, minOffsetsPerTrigger="30", maxTriggerDelay="1m")
    limit: ReadLimit = source.getDefaultReadLimit()
    assert limit == ReadMinRows(30)
    at = source.latestOffset(offsets(0, 0), limit)
    logs.set(0, 0, 110)
    assert source.latestOffset(at, limit) == at
    clock.seconds = 61
    assert source.latestOffset(at, limit) == offsets(110, 50)
    logs.set(0, 0, 140)
    assert source.latestOffset(offsets(110, 50), limit) == offsets(140, 50)


def test_a_new_partition_is_read_from_its_beginning(logs: Logs) -> None:
    source = reader()
    logs.set(2, 0, 5)
    end = source.latestOffset(offsets(100, 50), ALL)
    assert end == offsets(100, 50, 5)
    assert planned(source, offsets(100, 50), end) == [(2, 0, 5)]


def test_a_batch_from_before_a_restart_is_planned_again_unchanged(logs: Logs) -> None:
    assert planned(reader(), offsets(10, 20), offsets(30, 20)) == [(0, 10, 30)]


def test_large_ranges_are_split_for_more_tasks(logs: Logs) -> None:
    assert len(planned(reader(minPartitions="6"), offsets(0, 0), offsets(100, 50))) == 6
    assert len(planned(reader(maxRecordsPerPartition="10"), offsets(0, 0), offsets(100, 50))) == 15


def test_records_removed_by_retention_are_lost(logs: Logs) -> None:
    logs.set(0, 60, 100)
    with pytest.raises(DataLost, match=r"orders\[0\], offsets 40 to 59 are lost"):
        planned(reader(), offsets(40, 50), offsets(100, 50))
    assert planned(reader(onDataLoss="skip"), offsets(40, 50), offsets(100, 50)) == [(0, 60, 100)]


def test_a_limit_counts_existing_records(logs: Logs) -> None:
    logs.set(0, 90, 100)
    source = reader(onDataLoss="skip", maxOffsetsPerTrigger="20")
    end = source.latestOffset(offsets(0, 50), source.getDefaultReadLimit())
    assert end == offsets(100, 50)


def test_a_recreated_topic_is_detected(logs: Logs) -> None:
    logs.ids = {"orders": "second"}
    with pytest.raises(DataLost, match="deleted and created again"):
        reader().latestOffset(offsets(10, 10), ALL)
    source = reader(onDataLoss="skip")
    end = source.latestOffset(offsets(10, 10), ALL)
    assert planned(source, offsets(10, 10), end) == [(0, 0, 100), (1, 0, 50)]


def test_a_planned_batch_of_a_recreated_topic_has_no_rows_of_the_new_one(logs: Logs) -> None:
    logs.ids = {"orders": "second"}
    with pytest.raises(DataLost, match=r"orders\[0\], offsets 0 to 99 are lost: .* deleted and created again"):
        planned(reader(), offsets(0, 0), offsets(100, 50))
    assert planned(reader(onDataLoss="skip"), offsets(0, 0), offsets(100, 50)) == []
    following = reader(onDataLoss="skip").latestOffset(offsets(100, 50), ALL)
    assert planned(reader(onDataLoss="skip"), offsets(100, 50), following) == [(0, 0, 100), (1, 0, 50)]


def test_offsets_that_move_backwards_are_a_loss(logs: Logs) -> None:
    logs.set(0, 0, 5)
    with pytest.raises(DataLost, match=r"orders\[0\] was read up to offset 10, and its log now ends at offset 5"):
        reader().latestOffset(offsets(10, 50), ALL)
    source = reader(onDataLoss="skip")
    end = source.latestOffset(offsets(10, 50), ALL)
    assert end == offsets(5, 50)
    assert planned(source, offsets(10, 50), end) == []


def test_without_ids_a_log_that_moved_backwards_counts_as_another(logs: Logs) -> None:
    logs.set(0, 0, 5)
    logs.ids = {}
    source = reader(onDataLoss="skip")
    start = offsets(10, 50, topic_id=None)
    assert planned(source, start, source.latestOffset(start, ALL)) == [(0, 0, 5)]


def test_a_deleted_topic_is_a_loss(logs: Logs) -> None:
    logs.bounds, logs.missing = {}, ("orders",)
    with pytest.raises(DataLost, match="was deleted or is no longer subscribed to"):
        reader().latestOffset(offsets(10, 10), ALL)
    assert reader(onDataLoss="skip").latestOffset(offsets(10, 10), ALL) == {"@ids": {"orders": "first"}}
    with pytest.raises(DataLost, match=r"orders\[0\]"):
        planned(reader(), offsets(0, 0), offsets(10, 10))


def test_a_stream_does_not_start_on_a_missing_topic(logs: Logs) -> None:
    logs.missing = ("orders",)
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic 'orders'"):
        reader().initialOffset()


def test_named_offsets_must_name_all_partitions(logs: Logs) -> None:
    source = reader(startingOffsets='{"orders": {"0": 5, "1": -1}}')
    assert source.initialOffset() == offsets(5, 50)
    with pytest.raises(Exception, match=r"orders\[1\] is missing"):
        reader(startingOffsets='{"orders": {"0": 5}}').initialOffset()
    with pytest.raises(Exception, match=r"names orders\[2\], which is not read"):
        reader(startingOffsets='{"orders": {"0": 5, "1": 5, "2": 5}}').initialOffset()


def test_times_become_offsets(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {TopicPartition("orders", 0): 33, TopicPartition("orders", 1): None}
    monkeypatch.setattr(planning, "offsets_at", lambda _brokers, times: {target: found[target] for target in times})
    with pytest.raises(Exception, match=r"orders\[1\] has no record at or after 1000 ms"):
        reader(startingTimestamp="1000").initialOffset()
    source = reader(startingTimestamp="1000", startingOffsetsByTimestampStrategy="latest")
    assert source.initialOffset() == offsets(33, 50)
