"""The job `replay`: copy records of an archive or of a topic to a topic, each once, in order per partition.

- Each partition is divided into ranges of offsets, which are written and committed one after another. Partitions are
  processed concurrently.
- A range is one transaction, and its commit stores its last offset (`ReplayAccount`). After a failure before the
  commit, readers see nothing of the range; after a failure behind it, the next run continues behind the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from headrace.archive.catalogue import Archive
from headrace.archive.errors import NotInArchive
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.columns.offsets import bounds, offsets_at
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.durations import parse_duration, parse_time
from headrace.model.errors import InvalidConfig, InvalidPartitions, UnknownTopicOrPartition
from headrace.model.names import check_topic_name
from headrace.pipeline.job import Job, JobProgress, JobResult, JobRun, failed_checks, repeat
from headrace.pipeline.replay_task import (
    ReplayAccount,
    ReplayRoute,
    ReplaySelection,
    ReplayTarget,
    ReplayTask,
    replay_filtered,
    run_replay_task,
)
from headrace.pipeline.spark_tasks import PartitionRange, SparkTaskPool, run_task
from headrace.pipeline.topic_selection import chosen, location_of, topic_ids, topic_names, wrong_topics
from headrace.spark.sink_options import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ReplaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[replay]`. Without `archive` the logs of the topics are read. `to` is the target topic, with `{topic}` for the
    name of the source, or a table from source to target."""

    topics: list[str]
    to: str | dict[str, str]
    archive: str | None = None
    from_time: str | None = None
    to_time: str | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    filter: str | None = None
    keep_partitions: bool = True
    keep_timestamps: bool = True
    origin_header: bool = False
    create: bool = False
    chunk_records: int = 100_000
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    transaction_timeout: str = "10m"


class SourceTopic(msgspec.Struct, frozen=True):
    """`spans`: the available offsets of its partitions."""

    topic: str
    topic_id: str
    spans: Sequence[PartitionRange]


class PartitionReplay(msgspec.Struct, frozen=True):
    """The rest of one partition: the offsets [start, end)."""

    route: ReplayRoute
    start: int
    end: int


class ReplayTotals(msgspec.Struct):
    """What a run has replayed so far, over all its rounds. `pending`: the offsets that are still to be replayed."""

    is_continuous: bool = False
    records: int = 0
    offsets: int = 0
    pending: int = 0

    def add(self, records: int, offsets: int) -> None:
        self.records += records
        self.offsets += offsets
        self.pending -= offsets

    @property
    def progress(self) -> JobProgress:
        total = None if self.is_continuous else self.offsets + self.pending
        return JobProgress(self.offsets, total, "offsets", f"{self.records} records", lag=self.pending)


class ReplayJob(Job[ReplaySettings]):
    settings_type = ReplaySettings

    def __init__(self, settings: ReplaySettings, folder: Path) -> None:
        self.settings = settings
        self._location = None if settings.archive is None else location_of(settings.archive, folder)

    def problems(self) -> Sequence[str]:
        settings = self.settings
        checks: dict[str, Callable[[], object]] = {
            "from_time": lambda: _parse_time(settings.from_time),
            "to_time": lambda: _parse_time(settings.to_time),
            "transaction_timeout": lambda: parse_duration(settings.transaction_timeout),
        }
        if isinstance(settings.to, str):
            checks["to"] = partial(check_topic_name, settings.to.replace("{topic}", "t"))
        else:
            checks |= {f"to.{topic}": partial(check_topic_name, target) for topic, target in settings.to.items()}
        found = [*wrong_topics(settings.topics), *failed_checks(checks)]
        if settings.chunk_records < 1:
            found.append("chunk_records: must be 1 or more")
        return found

    def plan(self, run: JobRun) -> Sequence[str]:
        lines = []
        account = self._account(run)
        for source in self._sources(run):
            target = self._target_of(source.topic)
            there = _partitions(run.brokers, target)
            if there is None:
                count = self._checked_count(source, target, None)
                lines.append(f"create topic {target} with {count} partitions")
            for replay in (
                self._partition_replays(run, account, source, target) if there else _all_partitions(source, target)
            ):
                where = f"{target}[{replay.route.partition}]" if self.settings.keep_partitions else target
                span = f"offsets {replay.start} to {replay.end - 1}"
                lines.append(f"{source.topic}[{replay.route.partition}]: {span} to {where}")
        return lines or ["nothing to replay: this pipeline has replayed everything"]

    def once(self, run: JobRun) -> JobResult:
        return self._replay_round(run, ReplayTotals())

    def continuously(self, run: JobRun, trigger_seconds: float) -> JobResult:
        totals = ReplayTotals(is_continuous=True)
        return repeat(run, trigger_seconds, lambda: self._replay_round(run, totals))

    def _replay_round(self, run: JobRun, totals: ReplayTotals) -> JobResult:
        """Replay what is available now."""
        account = self._account(run)
        replays: list[PartitionReplay] = []
        for source in self._sources(run):
            target = self._target_of(source.topic)
            count = self._checked_count(source, target, _partitions(run.brokers, target))
            _make_topic(run.brokers, target, count)
            replays += self._partition_replays(run, account, source, target)
        totals.pending = sum(replay.end - replay.start for replay in replays)
        run.report_progress(totals.progress)
        if replays:
            self._replay(run, account, replays, totals)
        is_idle = not totals.offsets and not totals.pending
        what = "nothing to replay: this pipeline has replayed everything"
        return JobResult(True, what if is_idle else f"{totals.records} records replayed", {"records": totals.records})

    # --- sources ---

    def _sources(self, run: JobRun) -> Iterator[SourceTopic]:
        if self._location is not None:
            yield from self._archived(Archive(self._location))
            return
        topics = topic_ids(run.brokers, topic_names(run.brokers, self.settings.topics))
        ranges = bounds(run.brokers, topics)
        for topic, topic_id in topics.items():
            theirs = {target: found for target, found in ranges.items() if target.topic == topic}
            starts = {target: found.earliest for target, found in theirs.items()}
            if (from_ms := _parse_time(self.settings.from_time)) is not None:
                found_at = offsets_at(run.brokers, dict.fromkeys(theirs, from_ms))
                starts = {t: theirs[t].latest if (at := found_at[t]) is None else at for t in theirs}
            spans = [self._span(t.partition, starts[t], theirs[t].latest) for t in sorted(theirs)]
            yield SourceTopic(topic, topic_id, spans)

    def _archived(self, archive: Archive) -> Iterator[SourceTopic]:
        names = chosen(self.settings.topics, archive.topics())
        if not names:
            raise NotInArchive(f"{archive.location} holds none of the topics {', '.join(self.settings.topics)}")
        for topic in names:
            catalogue = archive.existing(topic)
            assert catalogue.topic_id is not None
            spans = []
            for partition in catalogue.partitions:
                files = catalogue.all_files.of(partition)
                if (from_ms := _parse_time(self.settings.from_time)) is not None:
                    files = [f for f in files if f.timestamp_max is not None and f.timestamp_max >= from_ms]
                if files:
                    spans.append(self._span(partition, files[0].first, files[-1].last + 1))
            yield SourceTopic(topic, catalogue.topic_id, spans)

    def _span(self, partition: int, start: int, end: int) -> PartitionRange:
        low, high = self.settings.from_offset or 0, self.settings.to_offset
        return PartitionRange(partition, max(start, low), end if high is None else min(end, high))

    def _partition_replays(
        self, run: JobRun, account: ReplayAccount, source: SourceTopic, target: str
    ) -> Iterator[PartitionReplay]:
        target_id = topic_ids(run.brokers, [target])[target]
        if target_id == source.topic_id and self._location is None:
            raise InvalidConfig(f"topic {target!r} would be replayed into itself; choose another target with `to`")
        for span in source.spans:
            route = ReplayRoute(source.topic, source.topic_id, span.partition, target, target_id)
            start = max(span.start, account.position(route))
            if start < span.end:
                yield PartitionReplay(route, start, span.end)

    def _account(self, run: JobRun) -> ReplayAccount:
        settings = self.settings
        selection = ReplaySelection(settings.filter, settings.from_time, settings.from_offset, settings.keep_partitions)
        return ReplayAccount(run.brokers, run.name, run.work, selection)

    # --- targets ---

    def _target_of(self, topic: str) -> str:
        to = self.settings.to
        if isinstance(to, str):
            return check_topic_name(to.replace("{topic}", topic))
        if topic not in to:
            raise InvalidConfig(f"topic {topic!r} is selected, but `to` has no target for it")
        return check_topic_name(to[topic])

    def _checked_count(self, source: SourceTopic, target: str, count: int | None) -> int:
        """The number of partitions that the target has, or will be created with."""
        needed = max((span.partition for span in source.spans), default=0) + 1
        if count is None:
            if not self.settings.create:
                raise UnknownTopicOrPartition(f"there is no topic {target!r}; set `create = true` to create it")
            return needed
        if self.settings.keep_partitions and count < needed:
            raise InvalidPartitions(
                f"{target!r} has {count} partitions, and {source.topic!r} needs {needed}: add some with "
                f"`headrace topic alter {target} --partitions {needed}`, or set keep_partitions = false"
            )
        return count

    # --- replay ---

    def _replay(
        self, run: JobRun, account: ReplayAccount, replays: Sequence[PartitionReplay], totals: ReplayTotals
    ) -> None:
        positions = {replay.route: replay.start for replay in replays}
        with SparkTaskPool(run.spark, f"{run.name}: replay") as pool:
            running: dict[Future[tuple[int, int]], PartitionReplay] = {}

            def start_next(replay: PartitionReplay) -> None:
                start = positions[replay.route]
                if start < replay.end and not run.stop_requested:
                    end = min(start + self.settings.chunk_records, replay.end)
                    task, target = self._task(run, replay.route, start, end), self._target(run, account, replay)
                    work = partial(self._replay_range, account, replay.route, task, target)
                    running[pool.submit(work)] = replay

            for replay in replays:
                start_next(replay)
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    replay = running.pop(future)
                    written, end = future.result()
                    account.replayed(replay.route, end)
                    totals.add(written, end - positions[replay.route])
                    positions[replay.route] = end
                    run.report_progress(totals.progress)
                    start_next(replay)

    def _replay_range(
        self, account: ReplayAccount, route: ReplayRoute, task: ReplayTask, target: ReplayTarget, spark: SparkSession
    ) -> tuple[int, int]:
        """Replay one range; the number of its records, and the offset behind it."""
        if self.settings.filter is None:
            written = run_task(spark, run_replay_task, (task, target))
        else:
            written = replay_filtered(spark, task, target, self.settings.filter, account.work)
        if account.commit(route, task.start, task.end, written.member):
            return written.records, task.end
        return 0, account.position(route)

    def _task(self, run: JobRun, route: ReplayRoute, start: int, end: int) -> ReplayTask:
        from_ms, to_ms = _parse_time(self.settings.from_time), _parse_time(self.settings.to_time)
        return ReplayTask(run.brokers, self._location, route.topic, route.partition, start, end, from_ms, to_ms)

    def _target(self, run: JobRun, account: ReplayAccount, replay: PartitionReplay) -> ReplayTarget:
        options = {
            "kafka.bootstrap.servers": run.brokers,
            "topic": replay.route.target,
            "keepTimestamp": str(self.settings.keep_timestamps).lower(),
            "kafka.compression.type": self.settings.compression,
            "transactionTimeout": self.settings.transaction_timeout,
        }
        return ReplayTarget(
            parse(options, streaming=False),
            account.bundle(replay.route),
            self.settings.keep_partitions,
            self.settings.origin_header,
        )


def _parse_time(text: str | None) -> int | None:
    return None if text is None else parse_time(text)


def _all_partitions(source: SourceTopic, target: str) -> Sequence[PartitionReplay]:
    """The replays into a topic that does not exist yet."""
    return [
        PartitionReplay(ReplayRoute(source.topic, source.topic_id, span.partition, target, ""), span.start, span.end)
        for span in source.spans
        if span.start < span.end
    ]


def _partitions(brokers: str, topic: str) -> int | None:
    """The number of partitions; None if the topic does not exist."""

    async def ask(cluster: Cluster) -> int | None:
        try:
            return len((await TopicAdmin(cluster).describe(topic)).partitions)
        except UnknownTopicOrPartition:
            return None

    return sync_cluster(brokers).call(ask)


def _make_topic(brokers: str, topic: str, partitions: int) -> None:
    if _partitions(brokers, topic) is None:
        sync_cluster(brokers).call(lambda cluster: TopicAdmin(cluster).create(NewTopic(topic, partitions)))
