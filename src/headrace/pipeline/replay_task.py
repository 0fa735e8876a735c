"""Replay one range of a partition in a Spark task, and record how far each partition was replayed.

- A task reads one range of one partition in the order of offsets, and writes it to a transaction that stays open. The
  driver commits it as a joint commit whose sequence number is the last offset of the range. The last committed number
  therefore says how far the partition was replayed.
- The same is stored in a file, because brokers forget a joint commit that was idle for days. The file also stores which
  records were selected: if the selection changes midway, neither continuing nor starting over would be correct.
- With a filter, Spark reads and writes the range through `ReplaySource`. The writer returns its result to the job in a
  file of the job's folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace.archive.catalogue import Archive, ArchiveCatalogue
from headrace.client.transactions.joint_commits import (
    JointCommitMember,
    abort_joint_commit,
    commit_jointly,
    committed_sequence,
)
from headrace.columns.scan import scan
from headrace.columns.schema import ARROW_SCHEMA, COLUMNS, SPARK_DDL
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.errors import InvalidConfig
from headrace.model.message_headers import ORIGIN_OFFSET, ORIGIN_PARTITION, ORIGIN_TOPIC
from headrace.pipeline.spark_tasks import within_times
from headrace.spark.sink_columns import SinkColumns, append_headers
from headrace.spark.sink_options import SinkOptions
from headrace.spark.writing import WriteTask, write

_FILE = "replay.json"


class ReplayChanged(InvalidConfig):
    """The settings select other records than the earlier runs of the pipeline."""


class ReplaySelection(msgspec.Struct, frozen=True):
    """The settings that select records, without those that may change later (the end)."""

    filter: str | None
    from_time: str | None
    from_offset: int | None
    keep_partitions: bool


class ReplayRoute(msgspec.Struct, frozen=True):
    """A source partition and its target topic. The ids distinguish topics that had the same name one after another."""

    topic: str
    topic_id: str
    partition: int
    target: str
    target_id: str

    @property
    def key(self) -> str:
        identity = "\n".join((self.topic, self.topic_id, self.target, self.target_id))
        return f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}-{self.partition}"


class _StoredAccount(msgspec.Struct):
    selection: ReplaySelection
    replayed_to: dict[str, int] = {}


class ReplayAccount:
    """How far one pipeline has replayed each partition."""

    def __init__(self, brokers: str, name: str, work: Path, selection: ReplaySelection) -> None:
        self._brokers = brokers
        self._name = name
        self.work = work
        self._path = work / _FILE
        self._account = _StoredAccount(selection)
        if self._path.exists():
            self._account = msgspec.json.decode(self._path.read_bytes(), type=_StoredAccount)
        if self._account.replayed_to and self._account.selection != selection:
            raise ReplayChanged(
                f"pipeline {name!r} has replayed with other settings of filter, from and keep_partitions before; "
                "rename it, or restore these settings"
            )
        self._account.selection = selection

    def bundle(self, route: ReplayRoute) -> str:
        return f"replay-{self._name}-{route.key}"

    def position(self, route: ReplayRoute) -> int:
        """The first offset that was not replayed yet; 0 if nothing was replayed."""
        bundle = self.bundle(route)
        sequence = sync_cluster(self._brokers).call(lambda cluster: committed_sequence(cluster, bundle))
        return max(sequence + 1, self._account.replayed_to.get(route.key, 0))

    def commit(self, route: ReplayRoute, start: int, end: int, member: JointCommitMember | None) -> bool:
        """Commit [start, end) as the member wrote it. False, after an abort, if another process has replayed it."""
        if member is None:
            return True
        # A commit aborts the open transactions of other members. If nothing was committed since this member began,
        # which is checked here, then no other commit can come before its own.
        if self.position(route) > start:
            sync_cluster(self._brokers).call(lambda cluster: abort_joint_commit(cluster, self.bundle(route), [member]))
            return False
        return sync_cluster(self._brokers).call(
            lambda cluster: commit_jointly(cluster, self.bundle(route), end - 1, [member])
        )

    def replayed(self, route: ReplayRoute, end: int) -> None:
        """Store the position; call it after the commit."""
        self._account.replayed_to[route.key] = end
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".tmp")
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(self._account))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self._path)


_MEMBER = "0"


class ReplayTask(msgspec.Struct, frozen=True):
    """The source: offsets [start, end) of a partition, from an archive or, without one, from the log; only records
    of [from_ms, to_ms)."""

    brokers: str
    archive: str | None
    topic: str
    partition: int
    start: int
    end: int
    from_ms: int | None = None
    to_ms: int | None = None


class ReplayTarget(msgspec.Struct, frozen=True):
    options: SinkOptions
    bundle: str
    keep_partitions: bool
    origin_header: bool


class ReplayResult(msgspec.Struct, frozen=True):
    """The result of a task. No member: there was nothing to write, or it was committed before."""

    records: int
    member: JointCommitMember | None


def run_replay_task(item: tuple[ReplayTask, ReplayTarget]) -> ReplayResult:
    """Runs in a Spark worker."""
    task, target = item
    return write_rows(task, target, read_rows(task))


def read_rows(task: ReplayTask) -> Iterator[pa.RecordBatch]:
    start, end = task.start, task.end
    if task.archive is None:
        batches = scan(task.brokers, task.topic, task.partition, start, end)
    else:
        batches = _catalogue(task.archive, task.topic, task.partition, end).read(task.partition, start, end)
    return within_times(batches, task.from_ms, task.to_ms)


def write_rows(task: ReplayTask, target: ReplayTarget, rows: Iterator[pa.RecordBatch]) -> ReplayResult:
    names = ["key", "value", "headers", "timestamp", *(["partition"] if target.keep_partitions else [])]
    columns = SinkColumns(
        key=0,
        value=1,
        headers=2,
        timestamp=3 if target.options.keep_timestamp else None,
        partition=4 if target.keep_partitions else None,
    )
    typed = (batch.select(COLUMNS).cast(ARROW_SCHEMA) for batch in rows)
    marked = (with_origin(batch) for batch in typed) if target.origin_header else typed
    share = WriteTask(target.bundle, task.end - 1, _MEMBER)
    written = write(target.options, columns, share, (batch.select(names) for batch in marked))
    return ReplayResult(written.records, written.member)


def with_origin(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Add three headers at the end: the topic, partition and offset of the source record."""
    columns = {ORIGIN_TOPIC: "topic", ORIGIN_PARTITION: "partition", ORIGIN_OFFSET: "offset"}
    origin = {header: rows.column(name).cast(pa.string()) for header, name in columns.items()}
    marked = append_headers(rows.column("headers"), origin)
    return rows.set_column(rows.schema.get_field_index("headers"), rows.schema.field("headers"), marked)


def _catalogue(location: str, topic: str, partition: int, end: int) -> ArchiveCatalogue:
    """Cached between tasks, and refreshed if it ends before `end`."""
    catalogue = _opened(location, topic)
    if (catalogue.end_offset(partition) or 0) < end:
        catalogue.refresh()
    return catalogue


@lru_cache(maxsize=16)
def _opened(location: str, topic: str) -> ArchiveCatalogue:
    return Archive(location).existing(topic)


_NAME = "headrace_replay"


def replay_filtered(
    spark: SparkSession, task: ReplayTask, target: ReplayTarget, condition: str, work: Path
) -> ReplayResult:
    """Replay the records for which the condition, a Spark SQL expression, is true."""
    spark.dataSource.register(ReplaySource)
    # Spark looks up the writer's source in the active session of this thread; this makes `spark` the active one.
    spark.createDataFrame([], SPARK_DDL)
    work.mkdir(parents=True, exist_ok=True)
    result = work / f"{target.bundle}.written"
    options = {"task": _text(task), "target": _text(target), "result": str(result)}
    rows = spark.read.format(_NAME).options(**options).load().where(condition)
    rows.write.format(_NAME).options(**options).mode("append").save()
    written = msgspec.json.decode(result.read_bytes(), type=ReplayResult)
    result.unlink()
    return written


class ReplaySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return _NAME

    def schema(self) -> str:
        return SPARK_DDL

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return _ReplayReader(msgspec.json.decode(self.options["task"], type=ReplayTask))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        return _ReplayWriter(
            msgspec.json.decode(self.options["task"], type=ReplayTask),
            msgspec.json.decode(self.options["target"], type=ReplayTarget),
            Path(self.options["result"]),
        )


class _ReplayReader(DataSourceReader):
    def __init__(self, task: ReplayTask) -> None:
        self._task = task

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        return read_rows(self._task)


class _ReplayCommitMessage(WriterCommitMessage):
    def __init__(self, written: ReplayResult) -> None:
        self.written = written


class _ReplayWriter(DataSourceArrowWriter):
    def __init__(self, task: ReplayTask, target: ReplayTarget, result: Path) -> None:
        self._task = task
        self._target = target
        self._result = result

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _ReplayCommitMessage(write_rows(self._task, self._target, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        # Spark runs no task if it knows that there are no rows.
        results = [message.written for message in messages if isinstance(message, _ReplayCommitMessage)]
        draft = self._result.with_suffix(".tmp")
        draft.write_bytes(msgspec.json.encode(results[0] if results else ReplayResult(0, None)))
        os.replace(draft, self._result)


def _text(value: msgspec.Struct) -> str:
    return msgspec.json.encode(value).decode()
