"""Run jobs against an embedded broker, with Spark tasks executed in this process after pickling."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.groups.offsets import committed
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Producer
from headrace.client.transactions.transactional_producer import TransactionalProducer
from headrace.columns.offsets import bounds
from headrace.columns.scan import scan
from headrace.columns.sync_cluster import sync_cluster
from headrace.pipeline.job import JobProgress

HeaderList = Sequence[tuple[str, bytes | None]]


class Sent(NamedTuple):
    """A record of a producer."""

    key: bytes | None
    value: bytes | None
    headers: HeaderList = ()
    timestamp_ms: int = 1_700_000_000_000


def sent(count: int, first: int = 0) -> list[Sent]:
    """Records with and without key, value and headers."""
    return [
        Sent(
            None if n % 3 == 0 else b"k%d" % n,
            None if n % 5 == 4 else b"v%d" % n,
            [("h", None if n % 2 else b"\x00\xff"), ("h", b"")][: n % 3],
            1_700_000_000_000 + n,
        )
        for n in range(first, first + count)
    ]


class Brokers:
    """The operations of a test on the brokers."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.link = sync_cluster(address)

    def create(self, topic: str, partitions: int = 1) -> None:
        self.link.call(lambda cluster: TopicAdmin(cluster).create(NewTopic(topic, partitions)))

    def delete(self, topic: str) -> None:
        self.link.call(lambda cluster: TopicAdmin(cluster).delete(topic))

    def produce(self, topic: str, partition: int, records: Iterable[Sent]) -> None:
        async def work(cluster: Cluster) -> None:
            async with Producer(cluster) as producer:
                for key, value, headers, timestamp_ms in records:
                    await producer.submit(
                        topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
                    )

        self.link.call(work)

    def transact(self, topic: str, records: Iterable[Sent], *, commits: bool) -> None:
        async def work(cluster: Cluster) -> None:
            async with TransactionalProducer(cluster, "a-test") as producer:
                await producer.begin()
                for record in records:
                    await (await producer.submit(topic, record.value, key=record.key, partition=0))
                await (producer.commit() if commits else producer.abort())

        self.link.call(work)

    def trim(self, topic: str, partition: int, before: int) -> None:
        self.link.call(lambda cluster: TopicAdmin(cluster).trim({TopicPartition(topic, partition): before}))

    def committed(self, group: str) -> dict[TopicPartition, int]:
        found = self.link.call(lambda cluster: committed(cluster, group))
        return {target: commit.offset for target, commit in found.items()}

    def records(self, topic: str, partition: int) -> list[Sent]:
        """The records that a read_committed reader gets."""
        found = bounds(self.address, [topic])[TopicPartition(topic, partition)]
        rows = [
            row
            for batch in scan(self.address, topic, partition, found.earliest, found.latest)
            for row in batch.to_pylist()
        ]
        return [
            Sent(
                row["key"],
                row["value"],
                [(header["key"], header["value"]) for header in row["headers"]],
                int(row["timestamp"].timestamp() * 1000),
            )
            for row in rows
        ]


class FakeSparkContext:
    """The part of Spark's context that jobs use. `before_task` is called before each task, and may fail it."""

    defaultParallelism = 2  # noqa: N815, named as Spark has it

    def __init__(self) -> None:
        self.before_task: Callable[[Any], None] = lambda item: None
        self.groups: list[str] = []
        self.cancelled: list[str] = []

    def setJobGroup(self, name: str, description: str) -> None:
        self.groups.append(name)

    def cancelJobGroup(self, name: str) -> None:
        self.cancelled.append(name)

    def parallelize(self, items: Sequence[Any], slices: int) -> _Items:
        assert slices == len(items)
        return _Items(self, items)


class _Items:
    def __init__(
        self, context: FakeSparkContext, items: Sequence[Any], function: Callable[[Any], Any] | None = None
    ) -> None:
        self._context = context
        self._items = items
        self._function = function

    def map(self, function: Callable[[Any], Any]) -> _Items:
        return _Items(self._context, self._items, function)

    def collect(self) -> list[Any]:
        assert self._function is not None
        function = _pickled(self._function)
        results = []
        for item in self._items:
            self._context.before_task(item)
            results.append(_pickled(function(_pickled(item))))
        return results


class ManualClock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def monotonic(self) -> float:
        return self._seconds

    def now_ms(self) -> int:
        return int(self._seconds * 1000)

    def advance(self, seconds: float) -> None:
        self._seconds += seconds


class FakeSparkSession:
    def __init__(self) -> None:
        self.sparkContext = FakeSparkContext()


class InProcessRun:
    """An implementation of `JobRun` for tests."""

    name = "nightly"

    def __init__(self, brokers: str, work: Path) -> None:
        self.brokers = brokers
        self.work = work
        self.told: list[JobProgress] = []
        self.session = FakeSparkSession()
        self.sessions = 0
        self.waited: list[float] = []
        self.stop_after_waits: int | None = None
        self.stop_was_requested = False

    @property
    def spark(self) -> Any:
        self.sessions += 1
        return self.session

    def report_progress(self, progress: JobProgress) -> None:
        self.told.append(progress)

    @property
    def stop_requested(self) -> bool:
        return self.stop_was_requested or len(self.waited) == self.stop_after_waits

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))
