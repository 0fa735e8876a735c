"""The reader and writer of `ReplaySource`, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType
from tests.unit.archive.archive_support import TOPIC, add, archive_in, rows_of
from tests.unit.pipeline.in_process_run import Brokers

from headrace.client.transactions.joint_commits import commit_jointly
from headrace.columns.schema import SPARK_DDL
from headrace.pipeline.replay_task import ReplayResult, ReplaySource, ReplayTarget, ReplayTask
from headrace.spark.sink_options import SinkOptions
from headrace.testkit.embedded import EmbeddedBroker

SCHEMA = StructType()


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    with EmbeddedBroker() as broker:
        yield Brokers(broker.address)


def source_of(brokers: str, folder: Path) -> ReplaySource:
    stretch = ReplayTask(brokers, str(folder), TOPIC, 1, 3, 9)
    target = ReplayTarget(SinkOptions(brokers, "again", keep_timestamp=True), "a-bundle", True, False)
    options = {"task": msgspec.json.encode(stretch).decode(), "target": msgspec.json.encode(target).decode()}
    return ReplaySource(options | {"result": str(folder / "result")})


def test_the_reader_has_one_partition_with_the_rows_of_the_range(tmp_path: Path) -> None:
    add(archive_in(tmp_path).open(TOPIC), 1, 0, 5, 10)
    source = source_of("nowhere:1", tmp_path)
    assert (source.name(), source.schema()) == ("headrace_replay", SPARK_DDL)
    reader = source.reader(SCHEMA)
    (partition,) = reader.partitions()
    found = pa.Table.from_batches(reader.read(partition))
    assert found.to_pylist() == rows_of(1, range(3, 9)).to_pylist()


def test_the_writer_leaves_its_transaction_open_for_the_job(brokers: Brokers, tmp_path: Path) -> None:
    brokers.create("again", 2)
    writer = source_of(brokers.address, tmp_path).writer(SCHEMA, overwrite=False)
    writer.commit([writer.write(iter([rows_of(1, [3, 5, 8])]))])
    written = msgspec.json.decode((tmp_path / "result").read_bytes(), type=ReplayResult)
    assert written.records == 3
    assert brokers.records("again", 1) == []
    member = written.member
    assert member is not None
    assert brokers.link.call(lambda cluster: commit_jointly(cluster, "a-bundle", 8, [member]))
    assert [record.key for record in brokers.records("again", 1)] == [None, b"k5", b"k8"]


def test_a_filter_without_matches_writes_nothing(tmp_path: Path) -> None:
    writer = source_of("nowhere:1", tmp_path).writer(SCHEMA, overwrite=False)
    tellings: list[list[WriterCommitMessage | None]] = [[writer.write(iter([]))], [None], []]
    for messages in tellings:
        writer.commit(messages)
        assert json.loads((tmp_path / "result").read_bytes()) == {"records": 0, "member": None}
