"""Read records from an archive for `consume --from-archive`, up to the offset where the log continues.

The command reads the archive to its end and the log from there on, so that each record is printed once. It reports
offsets that are in neither on stderr: retention deleted them before they were archived.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.cli.failure import CommandFailed
from headrace.cli.output import print_status
from headrace.cli.record_format import Printer
from headrace.cli.start_position import StartPosition, log_bounds
from headrace.client.cluster import Cluster
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.groups.offsets import find_offsets
from headrace.client.metadata import TopicPartition
from headrace.model.errors import UnknownTopicOrPartition
from headrace.model.ids import id_to_text

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.archive import Archive, ArchiveCatalogue


class ArchivedRange(NamedTuple):
    """What to read of one partition: from `start` to `archived_to` from the archive, then from the log. `log_end` is
    None if the log no longer exists."""

    target: TopicPartition
    catalogue: ArchiveCatalogue
    start: int
    archived_to: int
    log_start: int
    log_end: int | None


def open_archive(path: str) -> Archive:
    """Open the archive at a path or URI; the command fails if there is none."""
    try:
        from headrace.archive import Archive
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise CommandFailed("archives require pyarrow; install it with `pip install headrace[spark]`") from error
    archive = Archive(path)
    if not archive.topics():
        raise CommandFailed(f"{path} is not an archive: none of its folders has a manifest")
    return archive


async def archived_ranges(
    cluster: Cluster, archive: Archive, topics: Sequence[str], partitions: Sequence[int], where: StartPosition
) -> list[ArchivedRange]:
    """Determine what to read of each partition."""
    found = []
    for topic in topics:
        catalogue = archive.existing(topic)
        numbers = await _partitions(cluster, catalogue)
        chosen = partitions or sorted(numbers | set(catalogue.partitions))
        for number in chosen:
            if number not in numbers and number not in catalogue.partitions:
                raise UnknownTopicOrPartition(f"topic {topic!r} has no partition {number}")
            target = TopicPartition(topic, number)
            log = None
            if number in numbers:
                starts, ends = await log_bounds(cluster, [target])
                log = starts[target], ends[target]
            found.append(await _archived_range(cluster, catalogue, target, log, where))
    return found


async def print_archived(found: Sequence[ArchivedRange], printer: Printer, count: int | None) -> tuple[int, bool]:
    """Print the archived records; return their number, and whether to continue with the log."""
    printed = 0
    out = sys.stdout.buffer
    try:
        for part in found:
            _print_gaps(part)
            batches = part.catalogue.read(part.target.partition, part.start, part.archived_to)
            # In a thread, so that Ctrl-C is handled while the archive is read.
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                rows = batch if count is None else batch.slice(0, count - printed)
                out.writelines(map(printer, _records(rows)))
                out.flush()
                printed += rows.num_rows
                if printed == count:
                    return printed, False
    except asyncio.CancelledError:
        return printed, False  # Ctrl-C is the normal way to end the command
    return printed, True


async def _partitions(cluster: Cluster, catalogue: ArchiveCatalogue) -> set[int]:
    """Return the current partitions of the topic; none if it was deleted."""
    try:
        view = await cluster.topic(catalogue.topic)
    except UnknownTopicOrPartition:
        print_status(f"topic {catalogue.topic!r} no longer exists: reading ends at the end of the archive")
        return set()
    if id_to_text(view.topic_id) != catalogue.topic_id:
        raise CommandFailed(
            f"{catalogue.location} contains an earlier topic {catalogue.topic!r}, which was deleted; the present topic "
            "of that name does not continue it. Replay the archive into another topic with `headrace pipeline run`"
        )
    return {partition.partition for partition in view.partitions}


async def _archived_range(
    cluster: Cluster,
    catalogue: ArchiveCatalogue,
    target: TopicPartition,
    log: tuple[int, int] | None,
    where: StartPosition,
) -> ArchivedRange:
    first, archived_to = catalogue.start_offset(target.partition), catalogue.end_offset(target.partition)
    if first is None or archived_to is None:
        assert log is not None
        first = archived_to = log[0]
    start_bound = first if log is None else min(first, log[0])
    end_bound = archived_to if log is None else max(archived_to, log[1])
    if where.kind == "time":
        offset = await _at_time(cluster, catalogue, target, log is not None, where.number, end_bound)
        where = StartPosition("offset", offset)
    start = where.within(start_bound, end_bound)
    return ArchivedRange(
        target, catalogue, start, archived_to, end_bound if log is None else log[0], None if log is None else end_bound
    )


async def _at_time(
    cluster: Cluster, catalogue: ArchiveCatalogue, target: TopicPartition, has_log: bool, time_ms: int, end_bound: int
) -> int:
    """Return the offset of the first record at or after the time, in the archive or else in the log."""
    offset = await asyncio.to_thread(_archived_at, catalogue, target.partition, time_ms)
    if offset is not None or not has_log:
        return end_bound if offset is None else offset
    found = (await find_offsets(cluster, {target: time_ms}))[target].offset
    return found if found >= 0 else end_bound


def _archived_at(catalogue: ArchiveCatalogue, partition: int, time_ms: int) -> int | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    for file in catalogue.all_files.of(partition):
        if file.timestamp_max is None or file.timestamp_max < time_ms:
            continue
        for batch in catalogue.read(partition, file.first, file.last + 1, ["offset", "timestamp"]):
            is_late = pc.greater_equal(batch.column("timestamp").cast(pa.int64()), time_ms * 1000)
            index = pc.index(is_late, True).as_py()
            if index >= 0:
                return int(batch.column("offset")[index].as_py())
    return None


def _print_gaps(part: ArchivedRange) -> None:
    position = part.start
    for file in part.catalogue.files(part.target.partition, part.start, part.archived_to):
        _print_gap(part.target, position, file.first)
        position = file.last + 1
    _print_gap(part.target, max(position, part.archived_to), part.log_start)


def _print_gap(target: TopicPartition, start: int, end: int) -> None:
    if start < end:
        print_status(f"offsets {start} to {end - 1} of {target} are missing from both the archive and the log")


def _records(rows: pa.RecordBatch) -> Iterator[ConsumedRecord]:
    import pyarrow as pa

    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    names = ("topic", "partition", "offset", "key", "value", "headers")
    columns = [rows.column(name).to_pylist() for name in names]
    for time_us, topic, partition, offset, key, value, headers in zip(times, *columns, strict=True):
        pairs = [(header["key"], header["value"]) for header in headers]
        yield ConsumedRecord(topic, partition, offset, time_us // 1000, key, value, pairs)
