"""The guarantees of the sink, on a real broker without a JVM: the test calls tasks and driver as Spark does."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StringType, StructType

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.transactions.joint_commits import MemberTransaction, committed_sequence
from headrace.columns.offsets import bounds
from headrace.columns.scan import scan
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.errors import InvalidConfig, MessageTooLarge, UnknownTopicOrPartition
from headrace.spark.sink import (
    BatchSink,
    NoBatchId,
    OverwriteNotSupported,
    StreamSink,
    stream_writer,
    write_task_of,
    writer,
)
from headrace.spark.sink_columns import InvalidColumns, InvalidRow, SinkColumns
from headrace.spark.sink_options import SinkOptions, parse
from headrace.spark.writing import AnotherBatchCommitted, TaskCommitMessage, TransactionLost, WriteTask, write
from headrace.testkit.embedded import EmbeddedBroker

SCHEMA = StructType().add("key", StringType()).add("value", BinaryType())
PARTITIONS = 3
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as started:
        yield started


class Query:
    """One query with its own topic; runs its tasks and its driver."""

    def __init__(self, broker: EmbeddedBroker, **options: str) -> None:
        self.address = broker.address
        self.topic = f"out-{next(_numbers)}"
        self.bundle = f"spark-{self.topic}"
        sync_cluster(self.address).call(lambda cluster: TopicAdmin(cluster).create(NewTopic(self.topic, PARTITIONS)))
        given = {"kafka.bootstrap.servers": self.address, "topic": self.topic} | options
        self.options = parse(given, streaming=True)
        self.driver = StreamSink(self.options, SCHEMA)

    def task(
        self, batch_id: int, member: str, values: Iterator[str] | list[str], digest: str = ""
    ) -> TaskCommitMessage:
        """One task with a row for each value, whose key is its first letter."""
        rows = (pa.RecordBatch.from_pydict({"key": [value[:1]], "value": [value.encode()]}) for value in values)
        return write(self.options, SinkColumns(key=0, value=1), WriteTask(self.bundle, batch_id, member, digest), rows)

    def committed(self) -> list[str]:
        return sorted(value.decode() for value in values_of(self.address, self.topic))


def values_of(address: str, topic: str, *, read_committed: bool = True) -> list[bytes]:
    return [row["value"] for row in rows_of(address, topic, read_committed=read_committed)]


def rows_of(address: str, topic: str, *, read_committed: bool = True) -> list[dict[str, Any]]:
    ends = bounds(address, [topic], read_committed=read_committed)
    return [
        row
        for target, (start, end) in sorted(ends.items())
        for batch in scan(address, *target, start, end, read_committed=read_committed)
        for row in batch.to_pylist()
    ]


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send small windows of rows."""
    monkeypatch.setattr("headrace.spark.writing.WINDOW_BYTES", 1)


def failing(*values: str) -> Iterator[str]:
    yield from values
    raise OSError("the disk of the executor is gone")


# One commit for all


def test_rows_of_tasks_are_readable_only_after_the_driver_has_committed(query: Query) -> None:
    messages = [query.task(0, "0", ["a1", "b1"]), query.task(0, "1", ["c1"])]
    assert query.committed() == []
    query.driver.commit(messages, 0)
    assert query.committed() == ["a1", "b1", "c1"]


def test_a_batch_repeated_after_its_commit_writes_nothing(query: Query) -> None:
    query.driver.commit([query.task(0, "0", ["a1"])], 0)
    again = query.task(0, "0", ["a1"])
    assert (again.member, again.records) == (None, 0)
    assert len(values_of(query.address, query.topic, read_committed=False)) == 1
    query.driver.commit([again], 0)
    assert query.committed() == ["a1"]


def test_a_batch_below_the_committed_number_is_an_error(query: Query) -> None:
    for batch_id in range(3):
        query.driver.commit([query.task(batch_id, "0", [f"a{batch_id}"])], batch_id)
    with pytest.raises(AnotherBatchCommitted, match=r"batch 1 is not written: .* batches up to 2.*Restore"):
        query.task(1, "0", ["other"])
    assert query.committed() == ["a0", "a1", "a2"]


def test_a_batch_overtaken_by_another_driver_fails_at_its_commit(query: Query) -> None:
    early = query.task(0, "7", ["a0"])
    for batch_id in range(2):
        query.driver.commit([query.task(batch_id, "0", [f"b{batch_id}"])], batch_id)
    with pytest.raises(AnotherBatchCommitted):
        query.driver.commit([early], 0)
    assert query.committed() == ["b0", "b1"]


def test_a_batch_of_the_committed_number_with_other_offsets_is_an_error(query: Query) -> None:
    query.driver.commit([query.task(0, "0", ["a1"], digest="offsets 0 to 1")], 0)
    assert query.task(0, "0", ["a1"], digest="offsets 0 to 1").member is None
    with pytest.raises(AnotherBatchCommitted, match="0, from other offsets"):
        query.task(0, "0", ["a1", "a2"], digest="offsets 0 to 2")
    assert query.task(0, "0", ["a1"]).member is None, "without a digest the number alone decides"


def test_a_commit_without_a_digest_is_recognised_by_its_number(query: Query) -> None:
    query.driver.commit([query.task(0, "0", ["a1"])], 0)
    assert query.task(0, "0", ["a1"], digest="offsets 0 to 1").member is None


def test_the_digest_covers_the_offsets_in_the_checkpoint(query: Query, tmp_path: Path) -> None:
    def sink_of(batch_id: int, offsets: str, location: str = str(tmp_path)) -> StreamSink:
        (tmp_path / "offsets").mkdir(exist_ok=True)
        (tmp_path / "offsets" / str(batch_id)).write_text(f'v1\n{{"batchTimestampMs":{next(_numbers)}}}\n{offsets}')
        return StreamSink(replace(query.options, checkpoint=location), SCHEMA)

    def digest_of(sink: StreamSink, batch_id: int) -> str:
        told = {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(batch_id)}
        return write_task_of(task_context(told), pickle.loads(pickle.dumps(sink))._planned).digest

    first = digest_of(sink_of(9, "{0: 5}"), 9)
    assert len(first) == 64
    assert digest_of(sink_of(9, "{0: 5}", tmp_path.as_uri()), 9) == first, "when it was planned does not matter"
    assert digest_of(sink_of(9, "{0: 6}"), 9) != first
    assert digest_of(sink_of(10, "{0: 5}"), 9) == "", "of another batch nothing is known"
    for elsewhere in ("hdfs://host/checkpoint", str(tmp_path / "missing")):
        assert digest_of(sink_of(9, "{0: 5}", elsewhere), 9) == ""


def test_an_uncommitted_batch_is_repeated_and_may_be_distributed_differently(query: Query) -> None:
    query.task(0, "0", ["a1", "b1"])
    query.task(0, "1", ["c1"])
    query.driver.commit([query.task(0, "0", ["c1"]), query.task(0, "1", ["b1", "a1"])], 0)
    assert query.committed() == ["a1", "b1", "c1"]


def test_of_two_concurrent_attempts_only_the_committed_one_is_read(query: Query) -> None:
    first, second = query.task(0, "0", ["a1"]), query.task(0, "0.1", ["a1"])
    query.driver.commit([second], 0)
    assert query.committed() == ["a1"]
    assert first.member != second.member


def test_a_fenced_attempt_cannot_be_committed(query: Query) -> None:
    old, other = query.task(0, "0", ["a1"]), query.task(0, "1", ["b1"])
    query.task(0, "0", ["a1"])
    with pytest.raises(TransactionLost, match=r"nothing of this batch was committed.*transactionTimeout"):
        query.driver.commit([old, other], 0)
    assert query.committed() == []


def test_two_drivers_commit_a_batch_once(query: Query) -> None:
    mine, theirs = [query.task(0, "0", ["a1"])], [query.task(0, "0.1", ["a1"])]
    query.driver.commit(theirs, 0)
    query.driver.commit(mine, 0)
    assert query.committed() == ["a1"]


def test_tasks_around_the_commit_of_another_driver_write_nothing(query: Query) -> None:
    early = query.task(0, "7", ["a1"])
    query.driver.commit([query.task(0, "0", ["a1", "b1"])], 0)
    late = query.task(0, "8", ["b1"])
    query.driver.commit([early, late], 0)
    assert query.committed() == ["a1", "b1"]


def test_an_abort_after_the_commit_changes_nothing(query: Query) -> None:
    messages = [query.task(0, "0", ["a1"])]
    query.driver.commit(messages, 0)
    query.driver.abort([*messages, None], 0)
    query.driver.commit(messages, 0)
    assert query.committed() == ["a1"]


def test_aborted_rows_are_never_read_and_do_not_block_readers(query: Query) -> None:
    messages = [query.task(0, "0", ["a1"]), None]
    query.driver.abort(messages, 0)
    with pytest.raises(TransactionLost):
        query.driver.commit(messages, 0)
    query.driver.commit([query.task(0, "0", ["a1"])], 0)
    assert query.committed() == ["a1"]


def test_a_task_without_rows_needs_no_transaction(query: Query) -> None:
    empty = query.task(0, "0", [])
    assert empty.member is None
    query.driver.commit([empty], 0)
    query.driver.commit([], 1)
    query.driver.commit([query.task(2, "0", []), query.task(2, "1", ["a1"])], 2)
    assert query.committed() == ["a1"]


@pytest.mark.usefixtures("small_windows")
def test_a_task_that_fails_aborts_what_it_wrote(query: Query) -> None:
    with pytest.raises(OSError, match="the disk of the executor"):
        query.task(0, "0", failing("a1", "b1"))
    assert len(values_of(query.address, query.topic, read_committed=False)) == 2
    ends = bounds(query.address, [query.topic], read_committed=True)
    assert ends == bounds(query.address, [query.topic], read_committed=False)  # no transaction is open
    assert query.committed() == []


def test_read_committed_readers_see_whole_batches(query: Query) -> None:
    for batch_id in range(5):
        messages = []
        for member in range(3):
            messages.append(query.task(batch_id, str(member), [f"{letter}{batch_id}" for letter in "abc"]))
            assert len(query.committed()) == 9 * batch_id
        query.driver.commit(messages, batch_id)
        assert len(query.committed()) == 9 * (batch_id + 1)


# What is written


@pytest.mark.usefixtures("small_windows")
def test_rows_of_a_task_keep_their_order_in_each_partition(broker: EmbeddedBroker) -> None:
    query = Query(broker, batchBytes="1024")
    count = 20_000
    rows = pa.RecordBatch.from_pydict(
        {"key": [str(number % 10) for number in range(count)], "value": [b"%d" % number for number in range(count)]}
    )
    message = write(query.options, SinkColumns(key=0, value=1), WriteTask(query.bundle, 0, "0"), iter([rows] * 3))
    assert message.records == 3 * count
    query.driver.commit([message], 0)
    for (_, partition), (start, end) in bounds(query.address, [query.topic]).items():
        read = [int(v) for b in scan(query.address, query.topic, partition, start, end) for v in b["value"].to_pylist()]
        assert read == sorted(read[: len(read) // 3]) * 3
    assert len(query.committed()) == 3 * count


def test_keys_headers_priority_and_partition_arrive(query: Query) -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "value": [b"v", None],
            "key": [b"k", None],
            "headers": [[("h", b"1")], None],
            "priority": [9, None],
            "partition": [2, 1],
        },
        schema=pa.schema(
            {
                "value": pa.binary(),
                "key": pa.binary(),
                "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
                "priority": pa.int32(),
                "partition": pa.int32(),
            }
        ),
    )
    columns = SinkColumns(value=0, key=1, headers=2, priority=3, partition=4)
    query.driver.commit([write(query.options, columns, WriteTask(query.bundle, 0, "0"), iter([rows]))], 0)
    first, second = rows_of(query.address, query.topic)
    assert (first["partition"], first["key"], first["value"]) == (1, None, None)
    assert (second["partition"], second["key"], second["value"]) == (2, b"k", b"v")
    assert [(h["key"], h["value"]) for h in second["headers"]] == [("h", b"1"), ("headrace-priority", b"9")]


def test_a_committed_delayed_row_waits_in_the_delayed_topic(query: Query) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"now", b"later"], "delay": pa.array([None, "1h"])})
    columns = SinkColumns(value=0, delay=1)
    query.driver.commit([write(query.options, columns, WriteTask(query.bundle, 0, "0"), iter([rows]))], 0)
    assert values_of(query.address, query.topic) == [b"now"]
    (later,) = rows_of(query.address, f"__delayed.{query.topic}")
    assert (later["value"], later["headers"]) == (b"later", [{"key": "headrace-delay", "value": b"1h"}])


def test_a_topic_column_distributes_rows_to_topics(broker: EmbeddedBroker) -> None:
    one, two = Query(broker), Query(broker)
    options = parse({"kafka.bootstrap.servers": broker.address}, streaming=True)
    rows = pa.RecordBatch.from_pydict({"value": [b"1", b"2", b"3"], "topic": [one.topic, two.topic, one.topic]})
    message = write(options, SinkColumns(value=0, topic=1), WriteTask(one.bundle, 0, "0"), iter([rows]))
    one.driver.commit([message], 0)
    assert (one.committed(), two.committed()) == (["1", "3"], ["2"])


def test_a_timestamp_is_kept_if_configured(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    options = replace(query.options, keep_timestamp=True)
    times = pa.array([1_000_000_000_000_000, 1_700_000_000_123_000], pa.timestamp("us", "UTC"))
    rows = pa.RecordBatch.from_pydict({"value": [b"1", b"2"], "key": [b"k", b"k"], "timestamp": times})
    columns = SinkColumns(value=0, key=1, timestamp=2)
    query.driver.commit([write(options, columns, WriteTask(query.bundle, 0, "0"), iter([rows]))], 0)
    assert [row["timestamp"] for row in rows_of(query.address, query.topic)] == times.to_pylist()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_can_be_compressed(broker: EmbeddedBroker, codec: str) -> None:
    query = Query(broker, **{"kafka.compression.type": codec})
    query.driver.commit([query.task(0, "0", ["a" * 1000, "b" * 1000])], 0)
    assert query.committed() == ["a" * 1000, "b" * 1000]


def test_at_least_once_is_read_without_a_commit(broker: EmbeddedBroker) -> None:
    query = Query(broker, delivery="at-least-once")
    messages = [query.task(0, "0", ["a1", "b1"])]
    assert query.committed() == ["a1", "b1"]
    query.driver.commit(messages, 0)
    query.driver.abort(messages, 0)
    assert query.committed() == ["a1", "b1"]


# What is refused


def test_a_missing_topic_is_an_error_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.spark.writing._TOPIC_WAIT_SECONDS", 0.1)
    rows = pa.RecordBatch.from_pydict({"value": [b"v"]})
    with EmbeddedBroker({"auto.create.topics.enable": "false"}) as broker:
        options = parse({"kafka.bootstrap.servers": broker.address, "topic": "nowhere"}, streaming=True)
        with pytest.raises(UnknownTopicOrPartition, match="nowhere"):
            write(options, SinkColumns(value=0), WriteTask("b", 0, "0"), iter([rows]))


def test_a_missing_topic_is_created_if_the_broker_allows_it(broker: EmbeddedBroker) -> None:
    options = parse({"kafka.bootstrap.servers": broker.address, "topic": "made"}, streaming=True)
    rows = pa.RecordBatch.from_pydict({"value": [b"v"]})
    message = write(options, SinkColumns(value=0), WriteTask("b", 0, "0"), iter([rows]))
    StreamSink(options, SCHEMA).commit([message], 0)
    assert values_of(broker.address, "made") == [b"v"]


def test_a_missing_partition_is_rejected(query: Query) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"v"], "partition": pa.array([PARTITIONS], pa.int32())})
    with pytest.raises(InvalidRow, match=r"partition 3 of topic .*, which has 0 to 2"):
        write(query.options, SinkColumns(value=0, partition=1), WriteTask(query.bundle, 0, "0"), iter([rows]))


def test_a_record_that_is_too_large_fails_the_task(query: Query) -> None:
    with pytest.raises(MessageTooLarge, match=r"max.message.bytes"):
        query.task(0, "0", ["x" * 3_000_000])
    assert query.committed() == []


def test_a_timeout_beyond_the_brokers_limit_says_which_option_to_lower(broker: EmbeddedBroker) -> None:
    query = Query(broker, transactionTimeout="1d")
    with pytest.raises(InvalidConfig, match=r"lower the option transactionTimeout.*transaction\.max\.timeout\.ms"):
        query.task(0, "0", ["a1"])


def test_a_transaction_that_was_ended_elsewhere_is_reported_as_lost(query: Query) -> None:
    window = pa.RecordBatch.from_pydict({"value": [b"x" * 1000] * 10_000})

    def rows() -> Iterator[pa.RecordBatch]:
        yield window
        sync_cluster(query.address).call(lambda cluster: MemberTransaction(cluster, query.bundle, "0", 60).begin())
        yield window

    with pytest.raises(TransactionLost, match="nothing of this batch was committed"):
        write(query.options, SinkColumns(value=0), WriteTask(query.bundle, 0, "0"), rows())


def test_a_topic_cannot_be_overwritten(broker: EmbeddedBroker) -> None:
    with pytest.raises(OverwriteNotSupported, match="append"):
        writer({"kafka.bootstrap.servers": broker.address, "topic": "t"}, SCHEMA, overwrite=True)


def test_options_and_columns_are_checked_before_anything_runs() -> None:
    with pytest.raises(InvalidConfig, match=r"kafka.bootstrap.servers is missing"):
        stream_writer({"topic": "t"}, SCHEMA)
    with pytest.raises(InvalidColumns, match="set the option 'topic'"):
        stream_writer({"kafka.bootstrap.servers": "nowhere:1"}, SCHEMA)


# What Spark tells


def task_context(properties: Mapping[str, str], partition: int = 5, attempt: int = 0) -> TaskContext:
    context = SimpleNamespace(
        getLocalProperty=properties.get, partitionId=lambda: partition, attemptNumber=lambda: attempt
    )
    return cast("TaskContext", context)


def test_a_task_gets_query_and_batch_from_spark() -> None:
    told = {"sql.streaming.queryId": "q-1", "streaming.sql.batchId": "17"}
    assert write_task_of(task_context(told)) == WriteTask("spark-q-1", 17, "5")
    assert write_task_of(task_context(told, attempt=2)) == WriteTask("spark-q-1", 17, "5.2")


@pytest.mark.parametrize("told", [{}, {"sql.streaming.queryId": "q"}, {"streaming.sql.batchId": "1"}])
def test_a_task_without_query_and_batch_writes_nothing(told: dict[str, str]) -> None:
    with pytest.raises(NoBatchId, match="delivery=at-least-once"):
        write_task_of(task_context(told))


def test_a_task_of_another_batch_than_the_drivers_is_not_committed(query: Query) -> None:
    messages = [query.task(0, "0", ["a1"])]
    with pytest.raises(NoBatchId, match="a task of batch 1"):
        query.driver.commit(messages, 1)
    assert query.committed() == []


# Writes without a stream


def play(sink: BatchSink, monkeypatch: pytest.MonkeyPatch, *values: bytes) -> None:
    """One write with one task, each part in a copy of the sink, as in Spark."""
    monkeypatch.setattr(TaskContext, "get", lambda: task_context({}, partition=0))
    rows = pa.RecordBatch.from_pydict({"key": [None] * len(values), "value": list(values)})
    message = pickle.loads(pickle.dumps(sink)).write(iter([rows]))
    pickle.loads(pickle.dumps(sink)).commit([pickle.loads(pickle.dumps(message))])


def test_each_write_has_a_unique_name(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"kafka.bootstrap.servers": query.address, "topic": query.topic}
    for _ in range(2):
        play(cast("BatchSink", writer(options, SCHEMA, overwrite=False)), monkeypatch, b"a")
    assert query.committed() == ["a", "a"]


def test_a_named_write_is_done_once(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    def play_version(version: str, value: bytes) -> None:
        options = {
            "kafka.bootstrap.servers": query.address,
            "topic": query.topic,
            "txnAppId": query.topic,
            "txnVersion": version,
        }
        play(cast("BatchSink", writer(options, SCHEMA, overwrite=False)), monkeypatch, value)

    for version, value in [("4", b"a"), ("4", b"a"), ("5", b"b"), ("5", b"b")]:
        play_version(version, value)
    with pytest.raises(AnotherBatchCommitted, match="greater txnVersion"):
        play_version("4", b"a")
    assert query.committed() == ["a", "b"]
    last = sync_cluster(query.address).call(lambda cluster: committed_sequence(cluster, f"spark-write-{query.topic}"))
    assert last == 5


def test_a_pickled_write_keeps_its_name(query: Query) -> None:
    sink = BatchSink(SinkOptions(query.address, query.topic), SCHEMA)
    assert vars(pickle.loads(pickle.dumps(sink))) == vars(sink)
