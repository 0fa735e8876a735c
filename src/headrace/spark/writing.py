"""Write the rows of one Spark task: into its own transaction, which the driver commits.

    rows -> windows -> columns of records -> rows of each partition -> batches -> brokers

- The transaction is a member of the write's joint commit (`headrace.client.transactions.joint_commits`): all tasks
  commit, or none does.
- A task whose batch is already committed, because the driver failed between the commit and its own checkpoint, writes
  nothing. A task fails if a later batch is committed, or this one with other offsets: skipping it would lose its rows.
- A task that fails aborts its transaction. The transaction of a killed task is aborted by the next attempt, by the next
  joint commit, or by its timeout, whichever comes first.
- Without a joint commit (`delivery=at-least-once`) rows are readable as soon as they are written, and twice if a task
  is repeated.
- Routing keeps the order of the rows of a partition. The partition column has precedence over the key. Rows with
  neither go to one partition per batch, so that batches are few and large; the first partition is random.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicPartition, TopicView
from headrace.client.produce.batch_writer import BatchWriter, ReadyBatch, idempotent_producer
from headrace.client.produce.sender import BatchProducer
from headrace.client.transactions.joint_commits import (
    JointCommitMember,
    MemberTransaction,
    abort_joint_commit,
    describe_joint_commit,
)
from headrace.columns.encode import encode_batches, partitions_of
from headrace.columns.sync_cluster import SyncCluster, sync_cluster
from headrace.model.errors import (
    HeadraceError,
    InvalidConfig,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    ProducerFenced,
    UnknownTopicOrPartition,
)
from headrace.runtime.clock import SystemClock
from headrace.runtime.entropy import Entropy, SystemEntropy
from headrace.spark.sink_columns import InvalidRow, RecordColumnsBuilder, SinkColumns
from headrace.spark.sink_options import SinkOptions


class PartitionRows(NamedTuple):
    """The rows at these indexes (None: all of them) go to one partition."""

    target: TopicPartition
    rows: pa.RecordBatch
    indexes: pa.Array | None


class RowRouter:
    """Assigns rows to partitions; `count_of` returns the number of partitions of a topic."""

    def __init__(self, count_of: Callable[[str], int], batch_bytes: int, entropy: Entropy) -> None:
        self._count_of = count_of
        self._batch_bytes = batch_bytes
        self._entropy = entropy

    def parts(self, rows: pa.RecordBatch) -> Iterator[PartitionRows]:
        """The rows by topic and partition. Raises InvalidRow for a partition that does not exist."""
        topics = rows.column("topic")
        names = pc.unique(topics).to_pylist()
        for name in names:
            theirs = rows if len(names) == 1 else rows.filter(pc.equal(topics, name))
            count = self._count_of(name)
            if "partition" in theirs.schema.names:
                yield from _parts(theirs, name, self._named(theirs, name, count))
            elif theirs.column("key").null_count < len(theirs):
                yield from _parts(theirs, name, self._by_key(theirs, count))
            else:
                yield from self._round_robin(theirs, name, count)

    def _by_key(self, rows: pa.RecordBatch, count: int) -> pa.Array:
        return partitions_of(rows.column("key"), count, keyless=self._any(count))

    def _named(self, rows: pa.RecordBatch, topic: str, count: int) -> pa.Array:
        named = rows.column("partition")
        ends = pc.min_max(named)
        for end in (ends["min"].as_py(), ends["max"].as_py()):
            if end is not None and not 0 <= end < count:
                raise InvalidRow(f"a row is for partition {end} of topic {topic!r}, which has 0 to {count - 1}")
        return pc.coalesce(named, self._by_key(rows, count)) if named.null_count else named

    def _round_robin(self, rows: pa.RecordBatch, topic: str, count: int) -> Iterator[PartitionRows]:
        """About one batch for each partition in turn."""
        each = max(1, len(rows) * self._batch_bytes // max(1, rows.nbytes))
        first = self._any(count)
        for number, position in enumerate(range(0, len(rows), each)):
            yield PartitionRows(TopicPartition(topic, (first + number) % count), rows.slice(position, each), None)

    def _any(self, count: int) -> int:
        return self._entropy.integer(0, count - 1)


def _parts(rows: pa.RecordBatch, topic: str, numbers: pa.Array) -> Iterator[PartitionRows]:
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(numbers).to_pylist()}
    if len(counts) == 1:
        yield PartitionRows(TopicPartition(topic, next(iter(counts))), rows, None)
        return
    order = pc.array_sort_indices(numbers)  # stable: each partition's rows keep their order
    position = 0
    for number in sorted(counts):
        yield PartitionRows(TopicPartition(topic, number), rows, order.slice(position, counts[number]))
        position += counts[number]


WINDOW_BYTES: Final = 8 * 1024 * 1024
"""How much of a task's rows is partitioned at a time: enough for large batches, also with many partitions."""

_TOPIC_WAIT_SECONDS: Final = 10.0
_ABORT_SECONDS: Final = 5.0
_SEQUENCES: Final = 0x80000000
_TRANSACTION_LOST: Final = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, InvalidTransactionState)


class TransactionLost(HeadraceError):
    """The transaction of a task ended before the write was committed."""


class AnotherBatchCommitted(HeadraceError):
    """This batch number or a later one was committed with other rows: the checkpoint is outdated."""


class WriteTask(msgspec.Struct, frozen=True):
    """A task's part of a write: the `member` of joint commit `bundle` number `sequence`. `digest`: of the batch's
    offsets; empty if unknown."""

    bundle: str
    sequence: int
    member: str
    digest: str = ""


class TaskCommitMessage(WriterCommitMessage):
    """The result of a task for the driver. `member` is None if the task wrote nothing or without a transaction."""

    def __init__(self, task: WriteTask, member: JointCommitMember | None = None, records: int = 0) -> None:
        self.task = task
        self.member = member
        self.records = records


def write(
    options: SinkOptions, columns: SinkColumns, task: WriteTask, rows: Iterator[pa.RecordBatch]
) -> TaskCommitMessage:
    """Write the rows; returns when all are acknowledged."""
    windows = _windows(rows, WINDOW_BYTES)
    window = next(windows, None)
    if window is None:
        return TaskCommitMessage(task)
    brokers = sync_cluster(options.brokers)
    if options.exactly_once and is_committed(brokers, task):
        for _ in windows:
            pass
        return TaskCommitMessage(task)
    writer = _TaskWriter(brokers, options, columns, task)
    try:
        brokers.call(writer.begin)
        while window is not None:
            writer.add(window)
            window = next(windows, None)
        return writer.finish()
    except HeadraceError as error:
        raise explained(error, options) from error
    finally:
        brokers.call(writer.close)


def explained(error: HeadraceError, options: SinkOptions) -> HeadraceError:
    """The error, with a hint about the options that affect it."""
    seconds = options.transaction_timeout_seconds
    if isinstance(error, InvalidTransactionTimeout):
        return InvalidConfig(
            f"the broker does not let a transaction be open for {seconds:g} s: lower the option transactionTimeout, "
            "or raise the broker's transaction.max.timeout.ms"
        )
    if isinstance(error, _TRANSACTION_LOST):
        return TransactionLost(
            f"nothing of this batch was committed: {error.message} (the transactions of a batch may be open for "
            f"{seconds:g} s; if it takes longer, raise the option transactionTimeout, or make smaller batches)"
        )
    return error


class _TaskWriter:
    def __init__(self, brokers: SyncCluster, options: SinkOptions, columns: SinkColumns, task: WriteTask) -> None:
        self._brokers = brokers
        self._options = options
        self._task_spec = task
        self._builder = RecordColumnsBuilder(columns, options.topic)
        self._router = RowRouter(self._partition_count, options.batch_bytes_max, SystemEntropy())
        self._clock = SystemClock()
        self._counts: dict[str, int] = {}
        self._sequences: dict[TopicPartition, int] = defaultdict(int)
        self._records = 0
        self._member: JointCommitMember | None = None
        self._producer: BatchProducer | None = None
        self._writer: BatchWriter | None = None
        self._is_finished = False

    def add(self, rows: pa.RecordBatch) -> None:
        """Encode the rows and enqueue them; earlier ones are sent meanwhile."""
        ready = [(part.target, self._encoded(part)) for part in self._router.parts(self._builder.build(rows))]
        self._brokers.call(lambda _: self._put(ready))
        self._records += len(rows)

    def finish(self) -> TaskCommitMessage:
        assert self._writer is not None
        writer = self._writer
        self._brokers.call(lambda _: writer.flush())
        self._is_finished = True
        return TaskCommitMessage(self._task_spec, self._member, self._records)

    def _partition_count(self, topic: str) -> int:
        if topic not in self._counts:
            self._counts[topic] = self._brokers.call(lambda cluster: _partition_count(cluster, topic))
        return self._counts[topic]

    def _encoded(self, part: PartitionRows) -> list[ReadyBatch]:
        assert self._producer is not None
        first = self._sequences[part.target]
        ready = encode_batches(
            part.rows,
            part.indexes,
            now_ms=self._clock.now_ms(),
            producer_id=self._producer.identity.producer_id,
            producer_epoch=self._producer.identity.epoch,
            base_sequence=first,
            is_transactional=self._options.exactly_once,
            compression=self._options.compression,
            batch_bytes_max=self._options.batch_bytes_max,
        )
        self._sequences[part.target] = (first + sum(batch.record_count for batch in ready)) % _SEQUENCES
        return ready

    # --- on the loop ---

    async def begin(self, cluster: Cluster) -> None:
        if self._options.exactly_once:
            task, timeout_seconds = self._task_spec, self._options.transaction_timeout_seconds
            transaction = MemberTransaction(cluster, task.bundle, task.member, timeout_seconds)
            self._member = await transaction.begin()
            self._producer = transaction
        else:
            self._producer = await idempotent_producer(cluster)
        self._writer = await BatchWriter(cluster, self._producer).__aenter__()

    async def _put(self, ready: Iterable[tuple[TopicPartition, list[ReadyBatch]]]) -> None:
        assert self._producer is not None
        assert self._writer is not None
        await self._producer.enlist([target for target, _ in ready])
        for target, batches in ready:
            await self._writer.append(target, batches)

    async def close(self, cluster: Cluster) -> None:
        """Abort an unfinished transaction, if the coordinator is reachable."""
        if self._writer is not None:
            await self._writer.__aexit__()
        if self._member is not None and not self._is_finished:
            with suppress(HeadraceError, TimeoutError):
                async with asyncio.timeout(_ABORT_SECONDS):
                    await abort_joint_commit(cluster, self._task_spec.bundle, [self._member])


def is_committed(brokers: SyncCluster, task: WriteTask) -> bool:
    """Whether this batch was the last one committed. Raises `AnotherBatchCommitted` if a later batch was committed, or
    another one with this number; digests are compared if both are known."""
    last = brokers.call(lambda cluster: describe_joint_commit(cluster, task.bundle))
    if last.sequence < task.sequence:
        return False
    if last.sequence == task.sequence and (not task.digest or not last.digest or task.digest == last.digest):
        return True
    what = f"up to {last.sequence}" if last.sequence > task.sequence else f"{task.sequence}, from other offsets"
    raise AnotherBatchCommitted(
        f"batch {task.sequence} is not written: {task.bundle!r} has committed batches {what}. This checkpoint (or "
        "txnVersion) is older than the last write, for example restored from a backup. Restore the newest checkpoint, "
        "or start with an empty one (a greater txnVersion) behind the written records"
    )


async def _partition_count(cluster: Cluster, topic: str) -> int:
    """The number of partitions; creates the topic if the brokers allow that."""

    async def create() -> TopicView:
        await cluster.refresh([topic], create=True)  # only this topic: deleted ones must not be created again
        return await cluster.topic(topic)

    try:
        view = await cluster.call_with_retries(lambda: cluster.topic(topic))
    except UnknownTopicOrPartition:
        view = await cluster.call_with_retries(create, deadline_seconds=_TOPIC_WAIT_SECONDS, topics_may_appear=True)
    return len(view.partitions)


def _windows(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer, larger batches; no empty ones."""
    pending: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if len(batch):
            pending.append(batch)
            size_bytes += batch.nbytes
        if size_bytes >= bytes_max:
            yield pa.concat_batches(pending)
            pending, size_bytes = [], 0
    if pending:
        yield pa.concat_batches(pending)
