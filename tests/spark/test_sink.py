"""The sink in a real Spark: rows arrive, and a repeated batch is not written twice."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.process import BrokerProcess
from tests.integration.records import create_topic, produce

from headrace.columns.offsets import bounds
from headrace.columns.scan import scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
    from pyspark.sql.types import StructType

ROWS = 1000


def rows_of(broker: BrokerProcess, topic: str) -> list[dict[str, Any]]:
    """Return what a read_committed reader sees."""
    ends = bounds(broker.address, [topic])
    parts = [scan(broker.address, *target, *ends[target]) for target in sorted(ends)]
    return [row for part in parts for batch in part for row in batch.to_pylist()]


def write(rows: DataFrame, broker: BrokerProcess, topic: str, mode: str = "append", **options: str) -> None:
    to = rows.write.format("headrace").mode(mode).option("kafka.bootstrap.servers", broker.address)
    to.option("topic", topic).options(**options).save()


def copy(
    spark: SparkSession, broker: BrokerProcess, source: str, target: str, checkpoint: Path, sink: str = "headrace"
) -> None:
    """Copy all present rows, in batches of a third of the rows, through a shuffle."""
    rows = spark.readStream.format("headrace").option("kafka.bootstrap.servers", broker.address)
    rows = rows.option("subscribe", source).option("startingOffsets", "earliest")
    to = rows.option("maxOffsetsPerTrigger", ROWS // 3 + 1).load().select("key", "value").repartition(3).writeStream
    to = to.format(sink).option("kafka.bootstrap.servers", broker.address).option("topic", target)
    to.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


@pytest.fixture
def source(broker: BrokerProcess, topic: str) -> str:
    create_topic(broker.address, topic, 3)
    produce(broker.address, topic, [b"%d" % number for number in range(ROWS)])
    return topic


@pytest.fixture
def target(broker: BrokerProcess, topic: str) -> str:
    name = f"target-{topic}"
    create_topic(broker.address, name, 3)
    return name


def test_a_batch_write_keeps_keys_headers_and_priorities_and_delays_rows(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.address, topic, 3)
    rows = spark.range(ROWS).selectExpr(
        "cast(id as string) as key",
        "concat('value ', id) as value",
        "array(struct('origin' as key, cast('spark' as binary) as value)) as headers",
        "cast(id % 10 as int) as priority",
        "if(id < 10, interval '1' hour, null) as delay",
    )
    write(rows, broker, topic)
    there = rows_of(broker, topic)
    assert {row["key"]: row["value"] for row in there} == {b"%d" % n: b"value %d" % n for n in range(10, ROWS)}
    (first,) = [row for row in there if row["key"] == b"123"]
    assert [(header["key"], header["value"]) for header in first["headers"]] == [
        ("origin", b"spark"),
        ("headrace-priority", b"3"),
    ]
    waiting = rows_of(broker, f"__delayed.{topic}")
    assert sorted(row["value"] for row in waiting) == [b"value %d" % number for number in range(10)]
    assert {"key": "headrace-delay", "value": b"3600000ms"} in waiting[0]["headers"]


@pytest.mark.parametrize(
    ("columns", "mode", "options", "sentence"),
    [
        ("id as value", "append", {}, "column 'value' must be binary or string, not bigint"),
        ("'v' as value", "overwrite", {}, "a topic cannot be overwritten"),
        ("'v' as value", "append", {"batchBites": "1"}, "there is no option 'batchbites'; did you mean batchBytes?"),
        ("'v' as value, 12 as priority", "append", {}, "column 'priority' must lie from 0 to 9; a row has 12"),
    ],
)
def test_invalid_writes_are_rejected_in_one_sentence(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: str,
    columns: str,
    mode: str,
    options: dict[str, str],
    sentence: str,
) -> None:
    from pyspark.errors import PySparkException

    create_topic(broker.address, topic, 1)
    with pytest.raises(PySparkException, match=sentence):
        write(spark.range(3).selectExpr(*columns.split(", ")), broker, topic, mode, **options)
    assert rows_of(broker, topic) == []


def test_a_batch_missing_in_the_checkpoint_is_not_written_again(
    spark: SparkSession, broker: BrokerProcess, source: str, target: str, tmp_path: Path
) -> None:
    copy(spark, broker, source, target, tmp_path)
    expected = sorted(b"%d" % number for number in range(ROWS))
    assert sorted(row["value"] for row in rows_of(broker, target)) == expected
    notes = sorted(
        (path for path in (tmp_path / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    assert len(notes) == 3
    notes[-1].unlink()  # as if the driver had died after the sink's commit
    copy(spark, broker, source, target, tmp_path)
    assert notes[-1].exists()
    assert sorted(row["value"] for row in rows_of(broker, target)) == expected


def test_a_checkpoint_restored_from_a_backup_fails_the_query_instead_of_losing_rows(
    spark: SparkSession, broker: BrokerProcess, source: str, target: str, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"
    copy(spark, broker, source, target, checkpoint)
    shutil.copytree(checkpoint, backup)
    produce(broker.address, source, [b"after the backup"])
    copy(spark, broker, source, target, checkpoint)
    shutil.rmtree(checkpoint)
    backup.rename(checkpoint)
    produce(broker.address, source, [b"after the restore"])
    # The next batch has a number that is already committed, and holds both rows.
    with pytest.raises(PySparkException, match="from other offsets"):
        copy(spark, broker, source, target, checkpoint)
    assert len(rows_of(broker, target)) == ROWS + 1


def test_an_abort_after_a_commit_with_a_lost_response_changes_nothing(
    spark: SparkSession, broker: BrokerProcess, source: str, target: str, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    spark.dataSource.register(forgetful())
    with pytest.raises(PySparkException, match="and then I forgot"):
        copy(spark, broker, source, target, tmp_path, sink="forgetful")
    assert 0 < len(rows_of(broker, target)) < ROWS
    copy(spark, broker, source, target, tmp_path)
    assert sorted(row["value"] for row in rows_of(broker, target)) == sorted(b"%d" % number for number in range(ROWS))


def forgetful() -> type[DataSource]:
    """A sink that commits and then fails, so that Spark aborts a committed batch."""
    from headrace.spark.sink import StreamSink
    from headrace.spark.sink_options import parse
    from pyspark_headrace import DefaultSource

    class ForgetfulSink(StreamSink):
        def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
            super().commit(messages, batchId)
            raise RuntimeError("it was committed, and then I forgot")

    class Forgetful(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "forgetful"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
            return ForgetfulSink(parse(self.options, streaming=True), schema)

    return Forgetful
