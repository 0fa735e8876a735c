"""A topic against its archive, and topics or archives against what was replayed from them.

The files of the archive are compared with the same offsets of the topic, as far as the topic still has them; all of
them are compared with the manifest's checksums. Offsets that neither has, between the beginning of the archive and the
end of the topic, are lost. So are those at the end of the archive that lie behind the end of the topic: the topic had
them once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from headrace.archive.catalogue import ArchiveCatalogue
from headrace.archive.errors import ArchiveDamaged
from headrace.archive.manifest import ArchivedFile
from headrace.archive.reading import check_digest
from headrace.model.durations import parse_time
from headrace.model.errors import InvalidRequest
from headrace.pipeline.audit.findings import ArchiveCheck, AuditFinding, AuditResult, ReplayCheck, result_of_check
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
    """`damage`: why the file is not the one that was archived; `is_there`: it can be read all the same."""

    damage: str
    is_there: bool
    findings: Sequence[AuditFinding]


# Archive


def check_archive(run: JobRun, check: ArchiveCheck, location: str, inspector: SourceInspector) -> AuditResult:
    side, topic = ArchiveSource(location, check.topic), TopicSource(inspector.brokers, check.topic)
    catalogue = inspector.catalogue(side)
    catalogue.check_topic_id(inspector.topic_id(check.topic))
    files = list(catalogue.all_files)
    bounds = inspector.bounds(check.topic)  # after the files: what is archived meanwhile does not lie behind this end
    examined = run_by_spark(
        run, partial(_check_file, inspector.read), [_FileCheckTask(side, one) for one in files], "checking files"
    )
    findings: list[AuditFinding] = []
    pairings: list[PartitionPairing] = []
    for partition in catalogue.partitions:
        own = [(file, told) for file, told in zip(files, examined, strict=True) if file.partition == partition]
        start, end = bounds.get(partition, (0, 0))
        findings += _damage_findings(check.topic, own, start, end)
        findings += _gap_findings(check.topic, [file for file, _ in own], start)
        findings += _beyond_log_end_findings(check.topic, [file for file, _ in own], end)
        stretches = _overlapping_ranges(own, start, end)
        if stretches:
            reading = DigestOptions("offset", timestamps=True)
            pairings.append(
                PartitionPairing(ComparedSide(topic, reading, stretches), ComparedSide(side, reading, stretches))
            )
    compared = compare(run, pairings, inspector.read, check.title)
    records = sum(file.records for file in files)
    notes = list(_not_archived(check.topic, catalogue, bounds))
    return result_of_check(check.title, records, [*findings, *_findings(compared)], notes)


def _check_file(read: ReadSource, task: _FileCheckTask) -> _FileCheckResult:
    """One file against its checksum, and by itself."""
    from headrace.archive.place import open_storage

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
        detail = f"{name}/{file.name} has {count} records, where the manifest has {file.records}"
        lost = AuditFinding(
            "lost", name, file.partition, file.first, file.last, count=file.records - count, detail=detail
        )
        findings.append(lost)
    return _FileCheckResult(damage, True, findings)


def _damage_findings(
    topic: str, files: Sequence[tuple[ArchivedFile, _FileCheckResult]], start: int, end: int
) -> Iterator[AuditFinding]:
    """Where the topic still has the offsets, the comparison with it tells more than a look at the file alone."""
    for file, told in files:
        where = topic, file.partition, file.first, file.last
        if not told.is_there:
            yield AuditFinding("lost", *where, count=file.records, detail=told.damage)
            continue
        if told.damage:
            yield AuditFinding("altered", *where, detail=told.damage)
        yield from (one for one in told.findings if one.offset is None or not start <= one.offset < end)


def _gap_findings(topic: str, files: Sequence[ArchivedFile], start: int) -> Iterator[AuditFinding]:
    """What was not archived and has left the topic."""
    reached = files[0].first
    for first, following in [*((file.first, file.last + 1) for file in files), (start, start)]:
        last = min(first, start) - 1
        if last >= reached:
            detail = "neither the archive nor the topic has these offsets"
            count = last - reached + 1
            yield AuditFinding("lost", topic, files[0].partition, reached, last, count=count, detail=detail)
        reached = max(reached, following)


def _beyond_log_end_findings(topic: str, files: Sequence[ArchivedFile], end: int) -> Iterator[AuditFinding]:
    """What the archive has and the topic has lost: a log starts later as time goes on, and never ends earlier."""
    for file in files:
        first = max(file.first, end)
        if first <= file.last:
            detail = f"is in the archive, and the topic ends at offset {end}: it has lost its end"
            yield AuditFinding(
                "lost", topic, file.partition, first, file.last, count=file.last - first + 1, detail=detail
            )


def _overlapping_ranges(
    files: Sequence[tuple[ArchivedFile, _FileCheckResult]], start: int, end: int
) -> list[PartitionRange]:
    """Stretches as the files have them: so that a file that cannot be read takes nothing else along."""
    readable = [file for file, told in files if told.is_there]
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
            "partitions are compared one by one, so there must be as many"
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
    how = {"origin": "matched by the headers that tell their origin", "content": "matched by their content"}[by]
    records = sum(one.records for one in compared)
    return result_of_check(check.title, records, _findings(compared), [f"records were {how}"])


def _ranges_by_partition(side: RecordSource, inspector: SourceInspector) -> dict[int, list[PartitionRange]]:
    """By partition, at least one of each: it names the partition also where there is nothing to read."""
    if isinstance(side, TopicSource):
        found = {
            partition: split_range(partition, *bounds) for partition, bounds in inspector.bounds(side.name).items()
        }
    else:
        catalogue = inspector.catalogue(side)
        found = {partition: [] for partition in range(max(catalogue.partitions, default=-1) + 1)}
        for file in catalogue.all_files:
            found[file.partition].append(PartitionRange(file.partition, file.first, file.last + 1))
    return {partition: stretches or [PartitionRange(partition, 0, 0)] for partition, stretches in found.items()}


def _clipped(stretches: Mapping[int, Sequence[PartitionRange]], check: ReplayCheck) -> dict[int, list[PartitionRange]]:
    """What lies within the offsets that were to be replayed."""

    def clipped(one: PartitionRange) -> PartitionRange:
        start = max(one.start, check.from_offset)
        end = one.end if check.to_offset is None else min(one.end, check.to_offset)
        return PartitionRange(one.partition, start, max(start, end))

    return {partition: [clipped(one) for one in some] for partition, some in stretches.items()}


def _matching_key(
    check: ReplayCheck,
    target: TopicSource,
    stretches: Mapping[int, Sequence[PartitionRange]],
    inspector: SourceInspector,
) -> MatchBy:
    """The headers decide unless the settings do: those of the first record of the target that there is."""
    if check.match != "auto":
        return check.match
    for partition, some in stretches.items():
        range_ = PartitionRange(partition, some[0].start, min(some[0].start + _SAMPLED, some[0].end))
        reading = DigestOptions("origin", False, check.topic, partition)
        for batch in inspector.read(target, range_, reading.columns):
            if len(batch):
                return "content" if identities_of(batch, reading)[0] is None else "origin"
    return "content"


def _findings(compared: Sequence[ComparisonResult]) -> Iterator[AuditFinding]:
    return (finding for one in compared for finding in one.findings)
