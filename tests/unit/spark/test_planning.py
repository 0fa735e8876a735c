"""Planning and reading without Spark, on a broker in this process."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader, EqualTo, GreaterThanOrEqual
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.groups.offsets import Commit, commit, committed
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Producer
from headrace.columns.offsets import OffsetBounds
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.errors import InvalidConfig, UnknownTopicOrPartition
from headrace.spark.options import SourceOptions, parse
from headrace.spark.planning import GroupProgress, describe_log, resolve_offsets
from headrace.spark.source import BatchReader, ddl
from headrace.testkit import EmbeddedBroker

ORDERS = [TopicPartition("orders", number) for number in range(2)]
OFFSET_AND_VALUE = StructType().add("offset", LongType()).add("value", BinaryType())


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """Topics orders (partitions of 3 and 2 records), bills and notes (empty)."""

    async def fill(cluster: Cluster) -> None:
        for topic in ("orders", "bills", "notes"):
            await TopicAdmin(cluster).create(NewTopic(topic, 2))
        async with Producer(cluster) as producer:
            for number in range(5):
                await producer.publish("orders", b"%d" % number, partition=number % 2, timestamp_ms=1000 * number)
        await commit(cluster, "readers", {ORDERS[0]: Commit(2)})

    with EmbeddedBroker() as broker:
        sync_cluster(broker.address).call(fill)
        yield broker.address


def options_of(brokers: str, *, streaming: bool = True, **more: str) -> SourceOptions:
    if not {"subscribe", "subscribePattern", "assign"} & set(more):
        more["subscribe"] = "orders"
    return parse({"kafka.bootstrap.servers": brokers, **more}, streaming=streaming)


def test_all_partitions_of_the_named_topics_are_described(brokers: str) -> None:
    view = describe_log(options_of(brokers, subscribe="orders,bills,nothing"))
    assert {str(target): tuple(bounds) for target, bounds in view.bounds.items()} == {
        "orders[0]": (0, 3),
        "orders[1]": (0, 2),
        "bills[0]": (0, 0),
        "bills[1]": (0, 0),
    }
    assert (set(view.ids), view.missing) == ({"orders", "bills"}, ("nothing",))
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic 'nothing'"):
        view.check_complete()


def test_a_pattern_matches_whole_topic_names(brokers: str) -> None:
    assert set(describe_log(options_of(brokers, subscribePattern="(bill|note)s?")).ids) == {"bills", "notes"}
    assert describe_log(options_of(brokers, subscribePattern="order")).bounds == {}


def test_only_assigned_partitions_are_described(brokers: str) -> None:
    view = describe_log(options_of(brokers, assign='{"orders": [1]}'))
    assert view.bounds == {ORDERS[1]: OffsetBounds(0, 2)}
    with pytest.raises(UnknownTopicOrPartition, match=r"orders\[7\], which assign names"):
        describe_log(options_of(brokers, assign='{"orders": [7]}'))


def test_a_query_starts_at_the_offsets_of_a_group(brokers: str) -> None:
    options = options_of(brokers, startingOffsets="group", groupId="readers")
    assert resolve_offsets(options.starting, describe_log(options), options, name="") == {ORDERS[0]: 2, ORDERS[1]: 0}


def test_a_query_starts_at_a_time(brokers: str) -> None:
    options = options_of(brokers, startingTimestamp="1500", startingOffsetsByTimestampStrategy="latest")
    assert resolve_offsets(options.starting, describe_log(options), options, name="") == {ORDERS[0]: 1, ORDERS[1]: 1}


def test_progress_is_committed_for_the_group(brokers: str) -> None:
    progress = GroupProgress(brokers, "spark-lag")
    progress.commit({ORDERS[0]: 1, ORDERS[1]: 2})
    progress.commit({ORDERS[0]: 3, ORDERS[1]: 2})
    found = sync_cluster(brokers).call(lambda cluster: committed(cluster, "spark-lag"))
    assert {target: one.offset for target, one in found.items()} == {ORDERS[0]: 3, ORDERS[1]: 2}


def test_a_failed_commit_of_progress_is_logged(brokers: str, caplog: pytest.LogCaptureFixture) -> None:
    progress = GroupProgress(brokers, "spark-lag")
    with caplog.at_level(logging.WARNING):
        progress.commit({TopicPartition("nothing", 0): 1})
        progress.commit({TopicPartition("nothing", 0): 2})
    assert caplog.text.count("committing stream progress failed group=spark-lag") == 1


def values(reader: BatchReader) -> list[bytes]:
    sent: BatchReader = pickle.loads(pickle.dumps(reader))  # as Spark does, to the workers
    batches = [batch for partition in reader.partitions() for batch in sent.read(partition)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_a_reader_returns_the_records_of_the_topic(brokers: str) -> None:
    reader = BatchReader({"kafka.bootstrap.servers": brokers, "subscribe": "orders,bills"}, OFFSET_AND_VALUE)
    assert values(reader) == [b"0", b"2", b"4", b"1", b"3"]


def test_a_reader_uses_filters_and_returns_them_to_spark(brokers: str) -> None:
    reader = BatchReader({"kafka.bootstrap.servers": brokers, "subscribe": "orders"}, OFFSET_AND_VALUE)
    filters = [EqualTo(("partition",), 0), GreaterThanOrEqual(("offset",), 1)]
    assert list(reader.pushFilters(filters)) == filters
    assert values(reader) == [b"2", b"4"]


def test_a_reader_works_in_a_session_without_filter_pushdown(brokers: str) -> None:
    reader = BatchReader({"kafka.bootstrap.servers": brokers, "subscribe": "orders"}, OFFSET_AND_VALUE)
    seen = getattr(reader.pushFilters, "__func__", None)  # as Spark looks at it
    assert seen is DataSourceReader.pushFilters


def test_the_schema_follows_the_options(brokers: str) -> None:
    base = {"kafka.bootstrap.servers": brokers, "subscribe": "orders"}
    assert ddl(base | {"columns": "headers,topic"}) == "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING"
    decoded = ddl(base | {"columns": "value,rawValue", "valueFormat": "json", "valueSchema": "id LONG"})
    assert decoded == "value STRUCT<id LONG>, rawValue BINARY"


def test_an_incompatible_schema_is_rejected(brokers: str) -> None:
    base = {"kafka.bootstrap.servers": brokers, "subscribe": "orders"}
    with pytest.raises(InvalidConfig, match="the column offset is of type int64, not int32"):
        BatchReader(base, StructType().add("offset", IntegerType()))
    with pytest.raises(InvalidConfig, match="there is no column 'rawValue'"):
        BatchReader(base, StructType().add("rawValue", BinaryType()))
    value = StructType().add("value", StructType().add("name", StringType()))
    reader = BatchReader(base | {"valueFormat": "json", "valueSchema": "name STRING"}, value)
    assert reader._schema.field("value").type == pa.struct([("name", pa.string())])
