"""Run work in Spark tasks, and read ranges of topics and archives there.

- Functions and values here are pickled to Spark's workers.
- `SparkTaskPool` runs each piece as a Spark job, as many at a time as there are cores. Spark returns the results of a
  job only when all its tasks have ended; with one job per piece the driver gets each result as it is ready, and a stop
  waits only for the pieces that run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.archive.catalogue import Archive, ArchiveCatalogue
from headrace.client.admin.topic_admin import TopicAdmin
from headrace.columns.offsets import bounds
from headrace.columns.scan import scan
from headrace.columns.sync_cluster import sync_cluster
from headrace.pipeline.job import JobProgress, JobRun
from headrace.pipeline.topic_selection import topic_ids
from headrace.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")

RANGE_OFFSETS = 500_000
_TASKS_AT_ONCE = 64


class SparkTaskPool:
    """A context manager: an error within cancels the running pieces."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.spark = spark
        self._name = name
        self._pool = ThreadPoolExecutor(max(1, spark.sparkContext.defaultParallelism), "headrace-spark-tasks")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.spark.sparkContext.cancelJobGroup(self._name)
        self._pool.shutdown(cancel_futures=True)

    def submit(self, work: Callable[[SparkSession], Result]) -> Future[Result]:
        """Run `work` in a thread, in which it may start a Spark job and wait for it."""

        def in_group() -> Result:
            self.spark.sparkContext.setJobGroup(self._name, self._name)
            return work(self.spark)

        return self._pool.submit(in_group)


def run_task(spark: SparkSession, function: Callable[[Task], Result], item: Task) -> Result:
    """The result of an importable function for the item, computed in one Spark task."""
    return spark.sparkContext.parallelize([item], 1).map(function).collect()[0]


class TopicSource(msgspec.Struct, frozen=True, tag=True):
    """A topic, read with isolation read_committed or read_uncommitted."""

    brokers: str
    name: str
    read_committed: bool = True


class ArchiveSource(msgspec.Struct, frozen=True, tag=True):
    location: str
    name: str


RecordSource: TypeAlias = TopicSource | ArchiveSource


class PartitionRange(msgspec.Struct, frozen=True, gc=False):
    """The offsets [start, end) of a partition."""

    partition: int
    start: int
    end: int


ReadSource: TypeAlias = Callable[[RecordSource, PartitionRange, Sequence[str]], Iterator[Any]]


def read_source(side: RecordSource, range_: PartitionRange, columns: Sequence[str]) -> Iterator[Any]:
    """The existing records of the range, in order, as Arrow record batches."""
    where = (side.name, range_.partition, range_.start, range_.end)
    if isinstance(side, TopicSource):
        return scan(side.brokers, *where, columns=columns, read_committed=side.read_committed)
    return Archive(side.location).read(*where, columns)


def within_times(batches: Iterable[Any], from_ms: int | None, to_ms: int | None) -> Iterator[Any]:
    """The rows with a timestamp in [from_ms, to_ms); None: unbounded."""
    for batch in batches:
        rows = batch
        if from_ms is not None:
            rows = rows.filter(pc.greater_equal(rows.column("timestamp").cast(pa.int64()), from_ms * 1000))
        if to_ms is not None:
            rows = rows.filter(pc.less(rows.column("timestamp").cast(pa.int64()), to_ms * 1000))
        yield rows


class SourceInspector:
    """Queries that the driver makes before it creates tasks."""

    def __init__(self, brokers: str, clock: Clock | None = None) -> None:
        self.brokers = brokers
        self.read: ReadSource = read_source
        self._clock = clock or SystemClock()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def bounds(self, topic: str, *, read_committed: bool = True) -> dict[int, tuple[int, int]]:
        """Per partition, the first offset and the offset behind the last."""
        found = bounds(self.brokers, [topic], read_committed=read_committed)
        return {target.partition: (there.earliest, there.latest) for target, there in sorted(found.items())}

    def topic_id(self, topic: str) -> str:
        return topic_ids(self.brokers, [topic])[topic]

    def drops_records(self, topic: str) -> bool:
        """Whether records may be removed from the middle of the log, by compaction or as settled messages."""
        configs = self._configs(topic)
        return "compact" in configs.get("cleanup.policy", "") or configs.get("retention.mode") == "acked"

    def drops_duplicates(self, topic: str) -> bool:
        """Whether the topic removes duplicate records from batches before it stores them."""
        return self._configs(topic).get("dedup.window.ms", "0") != "0"

    def _configs(self, topic: str) -> dict[str, str]:
        configs = sync_cluster(self.brokers).call(lambda cluster: TopicAdmin(cluster).configs(topic))
        return {config.name: config.value or "" for config in configs}

    def catalogue(self, side: ArchiveSource) -> ArchiveCatalogue:
        """Raises NotInArchive."""
        return Archive(side.location).existing(side.name)


def split_range(partition: int, start: int, end: int, most: int = RANGE_OFFSETS) -> list[PartitionRange]:
    return [PartitionRange(partition, at, min(at + most, end)) for at in range(start, end, most)]


def run_by_spark(
    run: JobRun, work: Callable[[Task], Result], tasks: Sequence[Task], note: str, at_once: int = _TASKS_AT_ONCE
) -> list[Result]:
    """Run the tasks by Spark; the results are in the order of the tasks. Raises `RunStopped` at a stop request."""
    results: list[Result] = []
    for start in range(0, len(tasks), at_once):
        if run.stop_requested:
            raise RunStopped
        run.report_progress(JobProgress(start, len(tasks), "tasks", note))
        some = tasks[start : start + at_once]
        results += run.spark.sparkContext.parallelize(some, len(some)).map(work).collect()
    run.report_progress(JobProgress(len(tasks), len(tasks), "tasks", note))
    return results


class RunStopped(Exception):
    """A stop was requested, so the results are incomplete."""
