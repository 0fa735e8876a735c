"""Compare a topic with its archive, and topics or archives with their replays.

- The files of the archive are compared with the same offsets of the topic, as far as the topic still has them. All
  files are compared with the checksums of the manifest.
- Offsets between the start of the archive and the end of the topic that neither has are lost.
- Archived offsets at or above the end of the topic are lost, too: the topic had them once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from headrace.archive.catalogue import ArchiveCatalogue
from headrace.archive.errors import ArchiveDamaged
from headrace.archive.manifest import ArchivedFile
from headrace.archive.parquet_files import check_digest
from headrace.archive.storage import open_storage
from headrace.model.durations import parse_time
from headrace.model.errors import InvalidRequest
from headrace.pipeline.audit.findings import (
    ArchiveCheck,
    AuditFinding,
    AuditResult,
    ReplayCheck,
    range_findings,
    result_of_check,
)
from headrace.pipeline.audit.log_check import find_disorder
from headrace.pipeline.audit.partition_comparison import ComparedSide, ComparisonResult, PartitionPairing, compare
from headrace.pipeline.audit.record_digests import DigestOptions, MatchBy, identities_of
from headrace.pipeline.job import JobRun
from headrace.pipeline.spark_tasks import (
    ArchiveSource,
    PartitionRange,
    ReadSource,
    RecordSource,
    SourceInspector,
    TopicSource,
    run_by_spark,
    split_range,
)

_SAMPLED = 1000


class _FileCheckTask(msgspec.Struct, frozen=True):
    side: ArchiveSource
    file: ArchivedFile


class _FileCheckResult(msgspec.Struct, frozen=True):
    """`damage`: how the file differs from the manifest; `is_readable`: its records can be read nevertheless."""

    damage: str
    is_readable: bool
    findings: Sequence[AuditFinding]


# Archive


def check_archive(run: JobRun, check: ArchiveCheck, location: str, inspector: SourceInspector) -> AuditResult:
    side, topic = ArchiveSource(location, check.topic), TopicSource(inspector.brokers, check.topic)
    catalogue = inspector.catalogue(side)
    catalogue.check_topic_id(inspector.topic_id(check.topic))
    files = list(catalogue.all_files)
    bounds = inspector.bounds(check.topic)  # after the files, so that no archived offset is above this end
    tasks = [_FileCheckTask(side, one) for one in files]
    results = run_by_spark(run, partial(_check_file, inspector.read), tasks, "checking files")
    findings: list[AuditFinding] = []
    pairings: list[PartitionPairing] = []
    for partition in catalogue.partitions:
        own = [(file, checked) for file, checked in zip(files, results, strict=True) if file.partition == partition]
        start, end = bounds.get(partition, (0, 0))
        findings += _damage_findings(check.topic, own, start, end)
        findings += _gap_findings(check.topic, [file for file, _ in own], start)
        findings += _beyond_log_end_findings(check.topic, [file for file, _ in own], end)
        ranges = _overlapping_ranges(own, start, end)
        if ranges:
            options = DigestOptions("offset", timestamps=True)
            pairings.append(PartitionPairing(ComparedSide(topic, options, ranges), ComparedSide(side, options, ranges)))
    findings += _findings(compare(run, pairings, inspector.read, check.title))
    records = sum(file.records for file in files)
    notes = list(_not_archived(check.topic, catalogue, bounds))
    return result_of_check(check.title, records, findings, notes)


def _check_file(read: ReadSource, task: _FileCheckTask) -> _FileCheckResult:
    """Check one file against its checksum, and the order of its offsets."""
    file, name = task.file, task.side.name
    damage = ""
    try:
        check_digest(open_storage(task.side.location), name, file)
    except (ArchiveDamaged, FileNotFoundError) as error:
        damage = error.message if isinstance(error, ArchiveDamaged) else f"{name}/{file.name} is missing"
    range_ = PartitionRange(file.partition, file.first, file.last + 1)
    try:
        offsets = (batch.column(0).to_pylist() for batch in read(task.side, range_, ("offset",)))
        present, findings = find_disorder(name, file.partition, offsets)
    except (ArchiveDamaged, FileNotFoundError, OSError) as error:
        return _FileCheckResult(damage or f"{name}/{file.name} cannot be read: {error}", False, ())
    count = len(present) + sum(one.kind == "duplicated" for one in findings)
    if count < file.records:
        detail = f"{name}/{file.name} has {count} records, and the manifest says {file.records}"
        where = name, file.partition, file.first, file.last
        findings.append(AuditFinding("lost", *where, count=file.records - count, detail=detail))
    return _FileCheckResult(damage, True, findings)


def _damage_findings(
    topic: str, files: Sequence[tuple[ArchivedFile, _FileCheckResult]], start: int, end: int
) -> Iterator[AuditFinding]:
    """Findings in offsets that the topic still has are omitted: the comparison with it finds more."""
    for file, checked in files:
        where = topic, file.partition, file.first, file.last
        if not checked.is_readable:
            yield AuditFinding("lost", *where, count=file.records, detail=checked.damage)
            continue
        if checked.damage:
            yield AuditFinding("altered", *where, detail=checked.damage)
        yield from (one for one in checked.findings if one.offset is None or not start <= one.offset < end)


def _gap_findings(topic: str, files: Sequence[ArchivedFile], start: int) -> Iterator[AuditFinding]:
    """Offsets that were removed from the topic before they were archived."""
    gaps: list[tuple[int, int]] = []
    reached = files[0].first
    for first, following in [*((file.first, file.last + 1) for file in files), (start, start)]:
        gaps.append((reached, min(first, start) - 1))
        reached = max(reached, following)
    detail = "neither the archive nor the topic has these offsets"
    return range_findings("lost", topic, files[0].partition, gaps, detail)


def _beyond_log_end_findings(topic: str, files: Sequence[ArchivedFile], end: int) -> Iterator[AuditFinding]:
    """Archived offsets that the topic has lost: the end of a log never moves backwards."""
    ranges = [(max(file.first, end), file.last) for file in files]
    detail = f"is in the archive, but the topic ends at offset {end}"
    return range_findings("lost", topic, files[0].partition, ranges, detail)


def _overlapping_ranges(
    files: Sequence[tuple[ArchivedFile, _FileCheckResult]], start: int, end: int
) -> list[PartitionRange]:
    """One range per readable file, so that an unreadable file affects no other."""
    readable = [file for file, checked in files if checked.is_readable]
    ranges = [(file.partition, max(file.first, start), min(file.last + 1, end)) for file in readable]
    return [PartitionRange(*one) for one in ranges if one[1] < one[2]]


def _not_archived(topic: str, catalogue: ArchiveCatalogue, bounds: Mapping[int, tuple[int, int]]) -> Iterator[str]:
    for partition, (start, end) in bounds.items():
        if (behind := end - max(start, catalogue.end_offset(partition) or 0)) > 0:
            yield f"{topic}[{partition}]: the last {behind} offsets are not archived yet"


# Replay


def check_replay(run: JobRun, check: ReplayCheck, location: str | None, inspector: SourceInspector) -> AuditResult:
    source: RecordSource = (
        TopicSource(inspector.brokers, check.topic) if location is None else ArchiveSource(location, check.topic)
    )
    target = TopicSource(inspector.brokers, check.target)
    expected, found = _clipped(_ranges_by_partition(source, inspector), check), _ranges_by_partition(target, inspector)
    if set(found) < set(expected):
        raise InvalidRequest(
            f"{check.target} has {len(found)} partitions and {check.topic} has {len(expected)}: "
            "partitions are compared one by one, so the target needs at least as many"
        )
    by = _matching_key(check, target, found, inspector)
    own = DigestOptions(
        "content" if by == "content" else "offset",
        check.timestamps,
        from_ms=None if check.from_time is None else parse_time(check.from_time),
        to_ms=None if check.to_time is None else parse_time(check.to_time),
    )
    pairings = []
    for partition in found:
        left = ComparedSide(source, own, expected.get(partition, [PartitionRange(partition, 0, 0)]))
        right = ComparedSide(target, DigestOptions(by, check.timestamps, check.topic, partition), found[partition])
        pairings.append(PartitionPairing(left, right))
    compared = compare(run, pairings, inspector.read, check.title)
    how = {"origin": "matched by their origin headers", "content": "matched by their content"}[by]
    records = sum(one.records for one in compared)
    return result_of_check(check.title, records, _findings(compared), [f"records were {how}"])


def _ranges_by_partition(side: RecordSource, inspector: SourceInspector) -> dict[int, list[PartitionRange]]:
    """The ranges by partition; an empty range for a partition without records."""
    if isinstance(side, TopicSource):
        found = {
            partition: split_range(partition, *bounds) for partition, bounds in inspector.bounds(side.name).items()
        }
    else:
        catalogue = inspector.catalogue(side)
        found = {partition: [] for partition in range(max(catalogue.partitions, default=-1) + 1)}
        for file in catalogue.all_files:
            found[file.partition].append(PartitionRange(file.partition, file.first, file.last + 1))
    return {partition: ranges or [PartitionRange(partition, 0, 0)] for partition, ranges in found.items()}


def _clipped(ranges: Mapping[int, Sequence[PartitionRange]], check: ReplayCheck) -> dict[int, list[PartitionRange]]:
    """The parts of the ranges within the replayed offsets."""

    def clipped(one: PartitionRange) -> PartitionRange:
        start = max(one.start, check.from_offset)
        end = one.end if check.to_offset is None else min(one.end, check.to_offset)
        return PartitionRange(one.partition, start, max(start, end))

    return {partition: [clipped(one) for one in some] for partition, some in ranges.items()}


def _matching_key(
    check: ReplayCheck,
    target: TopicSource,
    ranges: Mapping[int, Sequence[PartitionRange]],
    inspector: SourceInspector,
) -> MatchBy:
    """The `match` setting, or for auto: by origin if the first record of the target has origin headers."""
    if check.match != "auto":
        return check.match
    for partition, some in ranges.items():
        range_ = PartitionRange(partition, some[0].start, min(some[0].start + _SAMPLED, some[0].end))
        options = DigestOptions("origin", False, check.topic, partition)
        for batch in inspector.read(target, range_, options.columns):
            if len(batch):
                return "content" if identities_of(batch, options)[0] is None else "origin"
    return "content"


def _findings(compared: Sequence[ComparisonResult]) -> Iterator[AuditFinding]:
    return (finding for one in compared for finding in one.findings)
