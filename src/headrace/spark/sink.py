"""Write a Spark query to topics exactly once: readers see all rows of a batch or none.

- Each task writes in its own transaction and leaves it open (`writing`). The driver commits all of them in one joint
  commit, together with the number of the batch and a digest of its offsets
  (`headrace.client.transactions.joint_commits`).
- A batch that runs again first queries the committed number. It therefore does not matter which task, executor, driver
  or broker fails, how often, or how a shuffle distributes the rows the next time: if the batch was committed, nothing
  is written again; if it was not, nothing of it is read.
- A number below the committed one, or the same number with another digest, is an error: this checkpoint is not the one
  that the last commit came from.
- Spark writes the offsets of a batch to `offsets/<batch id>` of the checkpoint before the batch runs, and reads them
  from there when it runs the batch again. Their digest therefore identifies the content of a batch. The same number
  with another digest is another batch, for example after a checkpoint was restored from a backup.
- Spark creates a new sink for every batch: only the tasks' messages connect them with the commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.client.transactions.joint_commits import JointCommitMember, abort_joint_commit, commit_jointly
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.errors import HeadraceError, InvalidRequest
from headrace.runtime.entropy import SystemEntropy
from headrace.spark.sink_columns import columns_of
from headrace.spark.sink_options import SinkOptions, parse
from headrace.spark.writing import TaskCommitMessage, WriteTask, explained, is_committed, write

_HEADER_LINES: Final = 2  # format version; time and settings of the batch


class PlannedBatch(msgspec.Struct, frozen=True):
    batch_id: int
    digest: str


def planned_batch(location: str | None) -> PlannedBatch | None:
    """The batch that Spark planned last; None if the checkpoint is not in a local file system."""
    folder = _local(location)
    if folder is None:
        return None
    offsets = os.path.join(folder, "offsets")
    try:
        batch_id = max((int(name) for name in os.listdir(offsets) if name.isascii() and name.isdigit()), default=None)
        if batch_id is None:
            return None
        with open(os.path.join(offsets, str(batch_id)), encoding="utf-8") as file:
            sources = file.read().splitlines()[_HEADER_LINES:]
    except (OSError, UnicodeDecodeError):
        return None
    return PlannedBatch(batch_id, sha256("\n".join(sources).encode()).hexdigest())


def _local(location: str | None) -> str | None:
    if not location:
        return None
    parts = urlsplit(location)
    if not parts.scheme:
        return location
    return unquote(parts.path) if parts.scheme == "file" else None


_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class NoBatchId(HeadraceError):
    """Spark does not report the query and batch of a task, so it cannot be written exactly once."""


class OverwriteNotSupported(InvalidRequest):
    """A topic cannot be overwritten, only appended to."""


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """The sink of `df.write`; raises errors of options and columns."""
    if overwrite:
        raise OverwriteNotSupported("a topic cannot be overwritten: write with mode('append')")
    return BatchSink(parse(options, streaming=False), schema)


def stream_writer(options: Mapping[str, str], schema: StructType) -> DataSourceStreamArrowWriter:
    """The sink of `df.writeStream`. Every output mode appends, as in Spark's Kafka sink."""
    return StreamSink(parse(options, streaming=True), schema)


class BatchSink(DataSourceArrowWriter):
    """A write without txnAppId gets a random name, so it cannot be repeated."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._columns = columns_of(schema, topic=options.topic, keep_timestamp=options.keep_timestamp)
        self._bundle = f"spark-write-{options.app_id or SystemEntropy().uuid()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        task = WriteTask(self._bundle, self._options.version, _member(_task()))
        return write(self._options, self._columns, task, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._options, self._options.version, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages)


class StreamSink(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._columns = columns_of(schema, topic=options.topic, keep_timestamp=options.keep_timestamp)
        self._planned = planned_batch(options.checkpoint)  # here, on the driver, where the checkpoint can be read

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        task = write_task_of(_task(), self._planned) if self._options.exactly_once else WriteTask("", 0, "")
        return write(self._options, self._columns, task, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _commit(self._options, batchId, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        _abort(self._options, messages)


def write_task_of(task: TaskContext, planned: PlannedBatch | None = None) -> WriteTask:
    """The query and batch of a task. The properties are internal to Spark: if a release lacks them, the write fails,
    because rows could be written twice."""
    query_id, batch_id = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
    if not query_id or not batch_id:
        raise NoBatchId(
            f"this release of Spark does not give tasks the properties {_QUERY_ID} and {_BATCH_ID}, without which a "
            "batch cannot be written exactly once; use a release that Headrace is tested with, or the option "
            "delivery=at-least-once"
        )
    digest = planned.digest if planned is not None and planned.batch_id == int(batch_id) else ""
    return WriteTask(f"spark-{query_id}", int(batch_id), _member(task), digest)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None
    return task


def _member(task: TaskContext) -> str:
    """Attempts of a task may run concurrently: each has its own transaction, and the driver commits one of them."""
    attempt = task.attemptNumber()
    return f"{task.partitionId()}.{attempt}" if attempt else str(task.partitionId())


def _commit(options: SinkOptions, sequence: int, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Called when all tasks have ended. The broker may have committed the batch already, for an earlier driver: then it
    aborts the transactions of tasks that queried the committed number before that commit."""
    results = [message for message in messages if isinstance(message, TaskCommitMessage)]
    members = _members(results)
    if not members:
        return
    if any(message.task.sequence != sequence for message in results):
        raise NoBatchId(f"Spark gave a task of batch {sequence} another batch id; nothing of it is committed")
    brokers, task = sync_cluster(options.brokers), results[0].task
    try:
        if not brokers.call(lambda cluster: commit_jointly(cluster, task.bundle, sequence, members, task.digest)):
            is_committed(brokers, task)  # raises if another batch was committed
    except HeadraceError as error:
        raise explained(error, options) from error


def _abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Spark may also abort a batch that was committed, if it missed the response; the broker then keeps it."""
    results = [message for message in messages if isinstance(message, TaskCommitMessage)]
    members = _members(results)
    if members:
        sync_cluster(options.brokers).call(lambda cluster: abort_joint_commit(cluster, results[0].task.bundle, members))


def _members(results: Sequence[TaskCommitMessage]) -> list[JointCommitMember]:
    return [message.member for message in results if message.member is not None]
