"""The job `archive`: copy topics to Parquet files, each offset once.

- A run archives what lies between the end of the archive's manifest and the last stable offset, in ranges of about one
  file each. A task reads a range and writes its file, without Java; the driver adds the files to the manifest in the
  order of their offsets.
- Only the manifest decides what is archived. A failed process leaves files that it does not name, and the next run
  plans from its end.
- The consumer group follows the manifest, so that lag tools show the job. The job reads its offset only to choose the
  start of a partition that is not in the archive yet, unless that starts at the oldest record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import msgspec

from headrace.archive.catalogue import Archive, ArchiveCatalogue
from headrace.archive.compaction import compact, sweep
from headrace.archive.errors import ArchiveConflict, ArchiveGap, ArchiveOfAnotherTopic
from headrace.archive.manifest import ArchivedFile
from headrace.archive.parquet_files import FileContents, FileOptions, write_file
from headrace.archive.storage import open_storage
from headrace.client.groups.offsets import Commit, commit, committed
from headrace.client.metadata import TopicPartition
from headrace.columns.offsets import OffsetBounds, bounds, offsets_at
from headrace.columns.scan import scan
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.durations import parse_duration, parse_time
from headrace.model.errors import OffsetOutOfRange
from headrace.pipeline.job import Job, JobProgress, JobResult, JobRun, failed_checks, repeat
from headrace.pipeline.settings import parse_size
from headrace.pipeline.spark_tasks import SparkTaskPool, run_task
from headrace.pipeline.topic_selection import location_of, log_bytes, topic_ids, topic_names, wrong_topics
from headrace.runtime.clock import Clock, SystemClock

_FILES_TO_COMPACT = 16  # in a continuous run: merging pairs of files would rewrite each row many times


class ArchiveSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[archive]`. `topics` are names or patterns. `file_bytes` counts bytes of the log."""

    topics: list[str]
    path: str
    group: str | None = None
    file_bytes: str = "128MB"
    file_records: int = 5_000_000
    compression: Literal["zstd", "snappy", "lz4", "gzip", "none"] = "zstd"
    begin: str = msgspec.field(name="from", default="earliest")
    flush_interval: str = "10m"
    on_data_loss: Literal["fail", "skip"] = "fail"
    compact: bool = False


class ArchiveTask(msgspec.Struct, frozen=True):
    """The range of offsets that one Spark task archives as one file."""

    brokers: str
    location: str
    subject: FileContents
    rules: FileOptions

    @property
    def offsets(self) -> int:
        return self.subject.last - self.subject.first + 1


class RangeUnavailable(msgspec.Struct, frozen=True):
    """The range could not be read: retention removed it from the log."""

    why: str


def run_archive_task(task: ArchiveTask) -> ArchivedFile | RangeUnavailable:
    """Runs in a Spark worker."""
    subject = task.subject
    rows = scan(task.brokers, subject.topic, subject.partition, subject.first, subject.last + 1)
    try:
        return write_file(open_storage(task.location), subject, rows, task.rules)
    except OffsetOutOfRange as error:
        return RangeUnavailable(error.message)


class ArchiveTotals(msgspec.Struct):
    """What a run has archived so far, over all its rounds. `offsets`: the archived offsets, `pending`: the offsets that
    are in the log and not in the archive yet."""

    is_continuous: bool = False
    records: int = 0
    files: int = 0
    size_bytes: int = 0
    merged: int = 0
    offsets: int = 0
    pending: int = 0

    def add(self, file: ArchivedFile, offsets: int) -> None:
        self.files += 1
        self.records += file.records
        self.size_bytes += file.bytes
        self.offsets += offsets
        self.pending -= offsets

    def progress(self, *, is_round_over: bool = False) -> JobProgress:
        total = None if self.is_continuous else self.offsets + self.pending
        note = f"{self.files} files, {self.size_bytes} bytes"
        if self.is_continuous and is_round_over and self.pending:
            note += "; waiting for a full file or flush_interval"
        return JobProgress(self.offsets, total, "offsets", note, lag=self.pending)


class PendingRange(msgspec.Struct, frozen=True):
    """The offsets [start, end) of a partition that are not archived yet."""

    target: TopicPartition
    topic_id: str
    start: int
    end: int
    bytes_per_offset: float


class ArchiveJob(Job[ArchiveSettings]):
    settings_type = ArchiveSettings

    def __init__(self, settings: ArchiveSettings, folder: Path, clock: Clock | None = None) -> None:
        self.settings = settings
        self._location = location_of(settings.path, folder)
        self._clock = clock or SystemClock()

    def problems(self) -> Sequence[str]:
        checks = {
            "file_bytes": lambda: parse_size(self.settings.file_bytes),
            "flush_interval": lambda: parse_duration(self.settings.flush_interval),
            "from": self._begin_ms,
        }
        found = [*wrong_topics(self.settings.topics), *failed_checks(checks)]
        if self.settings.file_records < 1:
            found.append("file_records: must be 1 or more")
        return found

    def plan(self, run: JobRun) -> Sequence[str]:
        lines = []
        for pending in self._pending_ranges(run, Archive(self._location)):
            if files := sum(1 for _ in self._tasks(run, pending, whole_only=False)):
                what = "1 file" if files == 1 else f"{files} files"
                lines.append(f"{pending.target}: offsets {pending.start} to {pending.end - 1} into {what}")
        return lines or ["nothing to archive: the archive is up to date"]

    def once(self, run: JobRun) -> JobResult:
        return self._archive_round(run, ArchiveTotals(), whole_only=False, files_min=2)

    def continuously(self, run: JobRun, trigger_seconds: float) -> JobResult:
        interval = parse_duration(self.settings.flush_interval) / 1000
        flushed_at = self._clock.monotonic()
        totals = ArchiveTotals(is_continuous=True)

        def work() -> JobResult:
            nonlocal flushed_at
            is_due = self._clock.monotonic() - flushed_at >= interval
            result = self._archive_round(run, totals, whole_only=not is_due, files_min=_FILES_TO_COMPACT)
            if is_due:
                flushed_at = self._clock.monotonic()
            return result

        return repeat(run, trigger_seconds, work)

    # --- one round ---

    def _archive_round(self, run: JobRun, totals: ArchiveTotals, *, whole_only: bool, files_min: int) -> JobResult:
        """Archive what is available now. After a conflict with another writer, plan again."""
        archive = Archive(self._location)
        work = _ArchiveRound(run, archive, self._group(run), totals, skips=self.settings.on_data_loss == "skip")
        while work.must_replan and not run.stop_requested:
            ranges = list(self._pending_ranges(run, archive))
            _commit(run.brokers, self._group(run), {pending.target: pending.start for pending in ranges})
            totals.pending = sum(pending.end - pending.start for pending in ranges)
            work.open({pending.target.topic for pending in ranges}, self._clock.now_ms())
            work.do([list(self._tasks(run, pending, whole_only)) for pending in ranges])
        if self.settings.compact and not run.stop_requested:
            for catalogue in work.catalogues.values():
                size = parse_size(self.settings.file_bytes)
                totals.merged += sum(1 for _ in compact(catalogue, size, self._rules, files_min=files_min))
        run.report_progress(totals.progress(is_round_over=True))
        return self._result(totals)

    def _result(self, totals: ArchiveTotals) -> JobResult:
        figures: dict[str, int | float | str] = {
            "records": totals.records,
            "files": totals.files,
            "bytes": totals.size_bytes,
            "merged": totals.merged,
        }
        summary = f"{totals.records} records in {totals.files} files, {totals.size_bytes} bytes"
        if totals.pending:
            summary += f"; {totals.pending} offsets are not archived yet, the next run archives them"
        return JobResult(True, summary, figures)

    def _pending_ranges(self, run: JobRun, archive: Archive) -> Iterator[PendingRange]:
        topics = topic_ids(run.brokers, topic_names(run.brokers, self.settings.topics))
        ranges = bounds(run.brokers, topics)
        for name, topic_id in topics.items():
            catalogue = archive.open(name)
            catalogue.check_topic_id(topic_id)
            sizes = log_bytes(run.brokers, name)
            for target in sorted(target for target in ranges if target.topic == name):
                found = ranges[target]
                start = self._start(run, target, found, catalogue.end_offset(target.partition))
                size = sizes.get(target.partition, 0) / max(1, found.latest - found.earliest)
                yield PendingRange(target, topic_id, start, found.latest, size)

    def _start(self, run: JobRun, target: TopicPartition, found: OffsetBounds, archived_to: int | None) -> int:
        start = self._first(run, target, found) if archived_to is None else archived_to
        if start >= found.earliest or self.settings.on_data_loss == "skip":
            return max(start, found.earliest)
        raise ArchiveGap(
            f"offsets {start} to {found.earliest - 1} of {target} were removed from the log before they were archived; "
            'set on_data_loss = "skip" to continue without them, and raise retention.ms to avoid this'
        )

    def _first(self, run: JobRun, target: TopicPartition, found: OffsetBounds) -> int:
        """The start of a partition that is not in the archive yet."""
        time_ms = self._begin_ms()
        if time_ms is None and self.settings.begin == "earliest":
            return found.earliest
        known = sync_cluster(run.brokers).call(lambda cluster: committed(cluster, self._group(run), [target]))
        if target in known:
            return max(found.earliest, known[target].offset)
        at = None if time_ms is None else offsets_at(run.brokers, {target: time_ms})[target]
        return found.latest if at is None else at

    def _begin_ms(self) -> int | None:
        text = self.settings.begin
        return None if text in ("earliest", "latest") else parse_time(text)

    def _tasks(self, run: JobRun, pending: PendingRange, whole_only: bool) -> Iterator[ArchiveTask]:
        by_size = int(parse_size(self.settings.file_bytes) / max(pending.bytes_per_offset, 1e-9))
        step = max(1, min(self.settings.file_records, by_size))
        for first in range(pending.start, pending.end, step):
            last = min(first + step, pending.end) - 1
            if whole_only and last - first + 1 < step:
                return
            subject = FileContents(pending.target.topic, pending.topic_id, pending.target.partition, first, last)
            yield ArchiveTask(run.brokers, self._location, subject, self._rules)

    @property
    def _rules(self) -> FileOptions:
        return FileOptions(compression=self.settings.compression)

    def _group(self, run: JobRun) -> str:
        return self.settings.group or f"archive-{run.name}"


class _ArchiveRound:
    def __init__(self, run: JobRun, archive: Archive, group: str, totals: ArchiveTotals, *, skips: bool) -> None:
        self.must_replan = True
        self._run = run
        self._archive = archive
        self.catalogues: dict[str, ArchiveCatalogue] = {}
        self._group = group
        self._totals = totals
        self._skips = skips

    def open(self, topics: Iterable[str], now_ms: int) -> None:
        """Load the current catalogues, and remove files that failed processes left behind."""
        self.catalogues = {name: self._archive.open(name) for name in sorted(topics)}
        for catalogue in self.catalogues.values():
            catalogue.settle()
            sweep(catalogue, now_ms)

    def do(self, tasks: Sequence[Sequence[ArchiveTask]]) -> None:
        """Run the tasks; those of a partition are in the order of their offsets."""
        self.must_replan = False
        # One task of each partition in turn, so that all partitions progress.
        ordered = [task for turn in zip_longest(*tasks) for task in turn if task is not None]
        if not ordered:
            return
        self._run.report_progress(self._totals.progress())
        running: list[tuple[ArchiveTask, Future[ArchivedFile | RangeUnavailable]]] = []
        try:
            with SparkTaskPool(self._run.spark, f"{self._run.name}: archive") as pool:
                for task in ordered:
                    work = partial(run_task, function=run_archive_task, item=task)
                    running.append((task, pool.submit(work)))
                self._accept_results(running)
        finally:
            for task, future in running:
                if future.done() and not future.cancelled() and future.exception() is None:
                    _discard(self.catalogues[task.subject.topic], future.result())

    def _accept_results(self, running: Sequence[tuple[ArchiveTask, Future[ArchivedFile | RangeUnavailable]]]) -> None:
        """Add the files in the order of their offsets. After a missing file, drop the later ones of the partition."""
        dropped: set[tuple[str, int]] = set()
        for task, future in running:
            key = (task.subject.topic, task.subject.partition)
            if key in dropped or (self._run.stop_requested and future.cancel()):
                dropped.add(key)
                future.cancel()
                continue
            result = future.result()
            try:
                if isinstance(result, ArchivedFile):
                    self._add(self.catalogues[task.subject.topic], task, result)
                    continue
                if not self._skips:
                    raise ArchiveGap(f'{result.why}; set on_data_loss = "skip" to continue without them')
            except ArchiveConflict:
                pass
            dropped.add(key)
            self.must_replan = True

    def _add(self, catalogue: ArchiveCatalogue, task: ArchiveTask, file: ArchivedFile) -> None:
        topic_id = task.subject.topic_id
        # Ids are never reused: if the topic still has this id, the task has read this topic.
        if topic_ids(self._run.brokers, [catalogue.topic])[catalogue.topic] != topic_id:
            raise ArchiveOfAnotherTopic(
                f"topic {catalogue.topic!r} was deleted and created again while it was archived"
            )
        catalogue.add(topic_id, [file], gaps=self._skips)
        self._commit(catalogue)
        self._totals.add(file, task.offsets)
        self._run.report_progress(self._totals.progress())

    def _commit(self, catalogue: ArchiveCatalogue) -> None:
        ends = {TopicPartition(catalogue.topic, p): catalogue.end_offset(p) for p in catalogue.partitions}
        _commit(self._run.brokers, self._group, {target: end for target, end in ends.items() if end is not None})


def _discard(catalogue: ArchiveCatalogue, result: object) -> None:
    """Delete a file that was written but not added to the manifest."""
    if isinstance(result, ArchivedFile) and catalogue.all_files.file_named(result.name) != result:
        catalogue.discard(result)


def _commit(brokers: str, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    commits = {target: Commit(offset) for target, offset in offsets.items()}
    sync_cluster(brokers).call(lambda cluster: commit(cluster, group, commits))
