"""The source in a real Spark, on a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster, connect
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Producer
from headrace.client.transactions.transactional_producer import TransactionalProducer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 2
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def ask(broker: BrokerProcess, work: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with connect(broker.address) as cluster:
            await work(cluster)

    asyncio.run(run())


def create(broker: BrokerProcess, topic: str, partitions: int = PARTITIONS) -> None:
    ask(broker, lambda cluster: TopicAdmin(cluster).create(NewTopic(topic, partitions)))


def publish(broker: BrokerProcess, topic: str, values: Sequence[bytes | None], times_ms: Sequence[int] = ()) -> None:
    """Publish the values to the partitions in turn."""

    async def work(cluster: Cluster) -> None:
        async with Producer(cluster) as producer:
            for number, value in enumerate(values):
                await producer.publish(
                    topic,
                    value,
                    key=b"k%d" % number if value is not None else None,
                    headers=[("trace", b"t%d" % number)] if number == 0 else (),
                    partition=number % PARTITIONS,
                    timestamp_ms=times_ms[number] if times_ms else None,
                )

    ask(broker, work)


def trim(broker: BrokerProcess, topic: str, before: int) -> None:
    async def work(cluster: Cluster) -> None:
        await TopicAdmin(cluster).trim({TopicPartition(topic, 0): before})

    ask(broker, work)


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    """A topic with values 0 to 19: the even ones in partition 0, the odd ones in partition 1."""
    create(broker, topic)
    publish(broker, topic, [b"%d" % number for number in range(20)])
    return topic


def batch(spark: SparkSession, broker: BrokerProcess, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", broker.address)
    return reader.option("subscribe", topic).options(**options).load()


def numbers(rows: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in rows.select("value").collect())


def run_available(
    spark: SparkSession, broker: BrokerProcess, topic: str, folder: Path, **options: str
) -> StreamingQuery:
    """Copy all present records to Parquet files, with a query that continues from its checkpoint."""
    reader = spark.readStream.format("headrace").option("kafka.bootstrap.servers", broker.address)
    stream = reader.option("subscribe", topic).option("startingOffsets", "earliest").options(**options).load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "rows"))
    query.awaitTermination(int(PATIENCE_SECONDS))
    return query


def copied(spark: SparkSession, folder: Path) -> list[int]:
    return numbers(spark.read.parquet(str(folder / "rows")))


def test_a_session_starts_without_installed_java(spark: SparkSession) -> None:
    assert shutil.which("java") is None
    assert "JAVA_HOME" not in os.environ
    assert spark.range(10).count() == 10


def test_a_function_of_plain_python_gives_no_warning(spark: SparkSession) -> None:
    from pyspark.sql.functions import udf

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        doubled = udf(lambda number: number * 2, "long")
        assert [row[0] for row in spark.range(3).select(doubled("id")).collect()] == [0, 2, 4]


def test_a_topic_is_a_table_with_kafkas_columns(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    create(broker, topic)
    publish(broker, topic, [b"first", None, b""], times_ms=[1_700_000_000_123, 5, 6])
    rows = batch(spark, broker, topic, includeHeaders="true")
    assert rows.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert dict(rows.dtypes)["headers"] == "array<struct<key:string,value:binary>>"
    first, third, second = rows.orderBy("partition", "offset").collect()
    assert (first.key, first.value, first.topic, first.partition, first.offset) == (b"k0", b"first", topic, 0, 0)
    assert first.timestamp.astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert [(header.key, header.value) for header in first.headers] == [("trace", b"t0")]
    assert (second.key, second.value, second.partition, third.value) == (None, None, 1, b"")


def test_unselected_columns_are_omitted(spark: SparkSession, broker: BrokerProcess, filled: str) -> None:
    rows = batch(spark, broker, filled, columns="offset,value")
    assert rows.dtypes == [("offset", "bigint"), ("value", "binary")]
    assert numbers(rows) == list(range(20))
    own = spark.read.format("headrace").schema("value BINARY").option("kafka.bootstrap.servers", broker.address)
    assert numbers(own.option("subscribePattern", f"{filled}|nothing").load()) == list(range(20))


def test_offsets_and_times_select_records(spark: SparkSession, broker: BrokerProcess, filled: str) -> None:
    start, end = json.dumps({filled: {"0": 3, "1": -2}}), json.dumps({filled: {"0": 5, "1": 1}})
    assert numbers(batch(spark, broker, filled, startingOffsets=start, endingOffsets=end)) == [1, 6, 8]
    assert numbers(batch(spark, broker, filled, endingTimestamp="5")) == []
    assert numbers(batch(spark, broker, filled, startingTimestamp="5", minPartitions="5")) == list(range(20))
    assert batch(spark, broker, filled, minPartitions="5").rdd.getNumPartitions() == 5


def test_filters_narrow_what_is_read(spark: SparkSession, broker: BrokerProcess, filled: str) -> None:
    rows = batch(spark, broker, filled)
    chosen = rows.where("partition = 1 and offset >= 4 and offset < 6")
    assert numbers(chosen) == [9, 11]
    assert chosen.rdd.getNumPartitions() == 1
    spark.conf.set(PUSHDOWN, "false")
    try:
        assert numbers(batch(spark, broker, filled).where("partition = 1 and offset >= 4 and offset < 6")) == [9, 11]
    finally:
        spark.conf.set(PUSHDOWN, "true")


def test_a_filter_by_time_loses_no_row(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    create(broker, topic)
    times = [5000, 9000, 1000, 1000, 9000, 1000, 2000, 1000, 9001, 8999]
    publish(broker, topic, [b"%d" % number for number in range(10)], times)
    rows = batch(spark, broker, topic)
    assert numbers(rows.where("timestamp >= timestamp_millis(9000)")) == [1, 4, 8]
    assert numbers(rows.where("timestamp > timestamp_micros(9000999)")) == [8]
    assert numbers(rows.where("timestamp < timestamp_millis(2000)")) == [2, 3, 5, 7]
    assert numbers(rows.where("timestamp > timestamp_millis(9001)")) == []


def test_sql_reads_a_topic(spark: SparkSession, broker: BrokerProcess, filled: str) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW filled USING headrace "
        f"OPTIONS (kafka.bootstrap.servers '{broker.address}', subscribe '{filled}')"
    )
    (row,) = spark.sql("SELECT count(*) AS count, max(offset) AS last FROM filled").collect()
    assert (row["count"], row["last"]) == (20, 9)


def test_values_are_decoded_by_a_schema(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    create(broker, topic)
    publish(broker, topic, [b'{"id": 1, "day": "2026-11-16"}', b'{"id": 2}', b"broken", None])
    json_options = {"valueFormat": "json", "valueSchema": "id LONG, day DATE", "onBadValue": "null"}
    rows = batch(spark, broker, topic, **json_options).selectExpr("value.id", "string(value.day)", "rawValue")
    assert {tuple(row) for row in rows.collect()} == {
        (1, "2026-11-16", b'{"id": 1, "day": "2026-11-16"}'),
        (2, None, b'{"id": 2}'),
        (None, None, b"broken"),
        (None, None, None),
    }
    with pytest.raises(Exception, match=r"\[0\] at offset 1 cannot be decoded"):
        batch(spark, broker, topic, **(json_options | {"onBadValue": "fail"})).collect()
    avro = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": "string"}]}'
    create(broker, f"{topic}.avro")
    publish(broker, f"{topic}.avro", [b"\x54\x04hi", b"\x01\x00"])
    rows = batch(spark, broker, f"{topic}.avro", valueFormat="avro", valueSchema=avro).select("value.*")
    assert {tuple(row) for row in rows.collect()} == {(42, "hi"), (-1, "")}


def test_a_wrong_option_is_reported_in_one_sentence(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    with pytest.raises(Exception, match=r"there is no option 'startingoffset'; did you mean startingOffsets\?"):
        batch(spark, broker, topic, startingOffset="earliest")
    with pytest.raises(Exception, match=r"valueSchema is not a list of columns .*: the type of the column id is NUMBR"):
        batch(spark, broker, topic, valueFormat="json", valueSchema="id NUMBR")
    with pytest.raises(Exception, match=f"there is no topic '{topic}'"):
        batch(spark, broker, topic).collect()


def test_a_stream_reads_in_small_batches_and_continues_from_its_checkpoint(
    spark: SparkSession, broker: BrokerProcess, filled: str, tmp_path: Path
) -> None:
    first = run_available(spark, broker, filled, tmp_path, maxOffsetsPerTrigger="8", groupId=f"g-{filled}")
    assert copied(spark, tmp_path) == list(range(20))
    assert [progress["numInputRows"] for progress in first.recentProgress if progress["numInputRows"]] == [8, 8, 4]

    ask(broker, lambda cluster: TopicAdmin(cluster).add_partitions(filled, 3))
    publish(broker, filled, [b"20", b"21", b"22"])
    run_available(spark, broker, filled, tmp_path, groupId=f"g-{filled}")
    assert copied(spark, tmp_path) == list(range(23))
    assert lags(broker, f"g-{filled}") == {0: (12, 0), 1: (11, 0), 2: (0, 0)}
    publish(broker, filled, [b"23", b"24", b"25"])
    assert lags(broker, f"g-{filled}") == {0: (12, 2), 1: (11, 1), 2: (0, 0)}


def lags(broker: BrokerProcess, group: str) -> dict[int, tuple[int, int]]:
    """Return, by partition, the committed offset of the group and its lag, as the command prints them."""
    command = [str(Path(sys.executable).with_name("headrace")), "group", "describe", group, "-o", "json"]
    output = subprocess.run(
        [*command, "--server", broker.address], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    )
    return {one["partition"]: (one["committed"], one["lag"]) for one in json.loads(output.stdout)["partitions"]}


def test_records_that_were_trimmed_are_lost_or_skipped(
    spark: SparkSession, broker: BrokerProcess, filled: str, tmp_path: Path
) -> None:
    run_available(spark, broker, filled, tmp_path)
    publish(broker, filled, [b"%d" % number for number in range(20, 40)])
    trim(broker, filled, 15)
    with pytest.raises(Exception, match=r"\[0\], offsets 10 to 14 are lost: the log starts at offset 15"):
        run_available(spark, broker, filled, tmp_path)
    run_available(spark, broker, filled, tmp_path, failOnDataLoss="false")
    assert copied(spark, tmp_path) == sorted({*range(40)} - {20, 22, 24, 26, 28})
    start = json.dumps({filled: {"0": 10, "1": 19}})
    with pytest.raises(Exception, match="offsets 10 to 14 are lost"):
        batch(spark, broker, filled, startingOffsets=start).collect()
    assert len(numbers(batch(spark, broker, filled, startingOffsets=start, onDataLoss="skip"))) == 6


def test_aborted_records_are_neither_read_nor_lost(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    create(broker, topic, 1)

    async def work(cluster: Cluster) -> None:
        async with TransactionalProducer(cluster, f"tx-{topic}") as producer:
            for value, commits in ((b"1", True), (b"2", False), (b"3", True)):
                await producer.begin()
                await (await producer.submit(topic, value))
                await (producer.commit() if commits else producer.abort())

    ask(broker, work)
    assert numbers(batch(spark, broker, topic)) == [1, 3]
    assert numbers(batch(spark, broker, topic, **{"kafka.isolation.level": "read_uncommitted"})) == [1, 2, 3]
