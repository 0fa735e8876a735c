"""Reading a range from a log in memory that may be trimmed during the read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Producer
from headrace.columns.scan import RangeOutOfLog
from headrace.columns.schema import schema_of
from headrace.columns.sync_cluster import sync_cluster
from headrace.spark import reading
from headrace.spark.decoding import BadValue
from headrace.spark.offsets import PlannedRange
from headrace.spark.options import SourceOptions, parse
from headrace.spark.planning import describe_log
from headrace.spark.reading import DataLost, rows
from headrace.testkit.embedded import EmbeddedBroker

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}
ROWS_PER_BATCH = 4


class Log:
    """Records 0 to 19; the log is trimmed after a number of rows."""

    def __init__(self) -> None:
        self.start, self.end = 0, 20
        self.trim_after: tuple[int, int] | None = None
        self.given = 0
        self.topic_id: str | None = "first"
        self.recreate_after: int | None = None

    def topic_id_of(self, _brokers: str, _target: TopicPartition) -> str | None:
        return self.topic_id

    def scan(self, *place: Any, columns: Sequence[str], read_committed: bool) -> Iterator[pa.RecordBatch]:
        _, _, _, start, end = place
        for first in range(start, end, ROWS_PER_BATCH):
            if self.trim_after is not None and self.given >= self.trim_after[0]:
                self.start = self.trim_after[1]
            if first < self.start or first >= self.end:
                raise RangeOutOfLog("", self.start, self.end)
            if self.recreate_after is not None and self.given >= self.recreate_after:
                self.topic_id = "second"
            last = min(first + ROWS_PER_BATCH, end, self.end)
            self.given += last - first
            yield batch(range(first, last), columns)
        if end > self.end:
            raise RangeOutOfLog("", self.start, self.end)


def batch(numbers: range, columns: Sequence[str]) -> pa.RecordBatch:
    values = [b"{" if number == 13 else b'{"id": %d}' % number for number in numbers]
    whole = {"offset": list(numbers), "value": values}
    return pa.RecordBatch.from_pydict({name: whole[name] for name in columns}, schema=schema_of(columns))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    found = Log()
    monkeypatch.setattr(reading, "scan", found.scan)
    monkeypatch.setattr(reading, "topic_id_of", found.topic_id_of)
    return found


def read(start: int, end: int, *columns: str, **more: str) -> list[Any]:
    options = parse({**BASE, **more}, streaming=True)
    schema = schema_of(columns or ("offset",))
    found = list(rows(options, PlannedRange("orders", 0, start, end, "first"), schema))
    assert all(part.schema == schema for part in found)
    return [value for part in found for value in part.column(0).to_pylist()]


def test_a_range_is_read_in_its_columns(log: Log) -> None:
    assert read(3, 9) == [3, 4, 5, 6, 7, 8]
    assert read(3, 5, "value") == [b'{"id": 3}', b'{"id": 4}']


def test_records_removed_during_the_read_are_lost(log: Log) -> None:
    log.trim_after = (8, 15)
    with pytest.raises(DataLost, match="offsets 8 to 14 are lost"):
        read(0, 20, "value")


def test_records_removed_during_the_read_are_skipped_if_configured(log: Log) -> None:
    log.trim_after = (8, 15)
    assert read(0, 20, onDataLoss="skip") == [*range(8), *range(15, 20)]


def test_a_range_that_was_removed_completely_has_no_rows(log: Log) -> None:
    log.start = 18
    assert read(0, 10, onDataLoss="skip") == []


def test_a_truncated_log_returns_its_remaining_records(log: Log) -> None:
    log.end = 10
    assert read(5, 15, onDataLoss="skip") == [5, 6, 7, 8, 9]
    with pytest.raises(DataLost, match="offsets 10 to 14 are lost: the log ends at offset 10"):
        read(5, 15)


def test_trimmed_records_are_read_from_the_archive(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[tuple[int, int]] = []

    def archived(_options: SourceOptions, missing: PlannedRange, _start: int, columns: Sequence[str]) -> Any:
        requested.append((missing.start, missing.end))
        return iter([batch(range(missing.start, missing.end), columns)])

    monkeypatch.setattr(reading, "check_archived", lambda *_: None)
    monkeypatch.setattr(reading, "read_archived", archived)
    log.trim_after = (8, 15)
    assert read(0, 20, onDataLoss="archive", archive="/a") == list(range(20))
    assert requested == [(8, 15)]
    log.start = 12
    assert read(0, 10, onDataLoss="archive", archive="/a") == list(range(10))
    assert requested[1:] == [(0, 10)]


def test_a_topic_recreated_during_the_read_fails_the_task(log: Log) -> None:
    log.recreate_after = 8
    with pytest.raises(DataLost, match="offsets 0 to 19 are lost: the topic orders was deleted and created again"):
        read(0, 20)


def test_a_topic_recreated_before_the_read_returns_no_rows_of_the_new_one(log: Log) -> None:
    log.topic_id = "second"
    with pytest.raises(DataLost, match="deleted and created again"):
        read(0, 20)
    assert read(0, 20, onDataLoss="skip") == []
    log.topic_id = None
    with pytest.raises(DataLost, match="was deleted;"):
        read(0, 20)
    assert log.given == 0


def test_brokers_without_topic_ids_are_supported(log: Log) -> None:
    log.topic_id = ""
    assert read(0, 5) == [0, 1, 2, 3, 4]


def test_values_are_decoded_and_their_bytes_kept(log: Log) -> None:
    kind = pa.struct([("id", pa.int64())])
    options = parse({**BASE, "valueFormat": "json", "valueSchema": "id LONG", "onBadValue": "null"}, streaming=True)
    schema = pa.schema([("rawValue", pa.binary()), ("value", kind)])
    (found,) = rows(options, PlannedRange("orders", 0, 12, 14), schema)
    assert found.to_pylist() == [{"rawValue": b'{"id": 12}', "value": {"id": 12}}, {"rawValue": b"{", "value": None}]


def test_a_bad_value_is_named(log: Log) -> None:
    options = parse({**BASE, "valueFormat": "json", "valueSchema": "id LONG"}, streaming=True)
    schema = pa.schema([("value", pa.struct([("id", pa.int64())]))])
    with pytest.raises(BadValue, match=r"orders\[0\] at offset 13 cannot be decoded"):
        list(rows(options, PlannedRange("orders", 0, 12, 16), schema))


def test_bytes_alone_are_not_decoded(log: Log) -> None:
    options = parse({**BASE, "valueFormat": "json", "valueSchema": "id LONG"}, streaming=True)
    (found,) = rows(options, PlannedRange("orders", 0, 13, 14), pa.schema([("rawValue", pa.binary())]))
    assert found.to_pylist() == [{"rawValue": b"{"}]


def test_a_recreated_topic_of_a_real_broker_is_detected() -> None:
    with EmbeddedBroker() as broker:
        options = parse({**BASE, "kafka.bootstrap.servers": broker.address}, streaming=True)
        brokers = sync_cluster(broker.address)

        async def create_and_fill(cluster: Cluster) -> None:
            await TopicAdmin(cluster).create(NewTopic("orders", 1))
            async with Producer(cluster) as producer:
                await producer.publish("orders", b"a")

        def planned_rows(topic_id: str) -> list[Any]:
            wanted = PlannedRange("orders", 0, 0, 1, topic_id)
            return [value for part in rows(options, wanted, schema_of(("value",))) for value in part[0].to_pylist()]

        brokers.call(create_and_fill)
        first = describe_log(options).ids["orders"]
        assert planned_rows(first) == [b"a"]
        brokers.call(lambda cluster: TopicAdmin(cluster).delete("orders"))
        with pytest.raises(DataLost, match="was deleted;"):
            planned_rows(first)
        brokers.call(create_and_fill)
        with pytest.raises(DataLost, match="deleted and created again"):
            planned_rows(first)
        assert planned_rows(describe_log(options).ids["orders"]) == [b"a"]
