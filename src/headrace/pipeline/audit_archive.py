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

from headrace.archive.catalogue import Catalogue
from headrace.archive.errors import ArchiveDamaged
from headrace.archive.manifest import ArchivedFile
from headrace.archive.reading import check_digest
from headrace.model.durations import parse_time
from headrace.model.errors import InvalidRequest
from headrace.pipeline.audit_checks import ArchiveCheck, ReplayCheck
from headrace.pipeline.audit_digest import By, Reading, identities_of
from headrace.pipeline.audit_findings import Finding, Verdict, verdict_of
from headrace.pipeline.audit_log import in_order
from headrace.pipeline.audit_partitions import Compared, Half, Pairing, compare
from headrace.pipeline.audit_sources import Archived, Look, Read, Side, Stretch, Topic, by_spark, cut
from headrace.pipeline.job import Run

_SAMPLED = 1000


class _File(msgspec.Struct, frozen=True):
    side: Archived
    file: ArchivedFile


class _Examined(msgspec.Struct, frozen=True):
    """`damage`: why the file is not the one that was archived; `is_there`: it can be read all the same."""

    damage: str
    is_there: bool
    findings: Sequence[Finding]


# Archive


def check_archive(run: Run, check: ArchiveCheck, location: str, look: Look) -> Verdict:
    side, topic = Archived(location, check.topic), Topic(look.brokers, check.topic)
    catalogue = look.catalogue(side)
    catalogue.check_topic_id(look.topic_id(check.topic))
    files = list(catalogue.all_files)
    bounds = look.bounds(check.topic)  # after the files: what is archived meanwhile does not lie behind this end
    examined = by_spark(run, partial(_examine, look.read), [_File(side, one) for one in files], "checking files")
    findings: list[Finding] = []
    pairings: list[Pairing] = []
    for partition in catalogue.partitions:
        own = [(file, told) for file, told in zip(files, examined, strict=True) if file.partition == partition]
        start, end = bounds.get(partition, (0, 0))
        findings += _damages(check.topic, own, start, end)
        findings += _gaps(check.topic, [file for file, _ in own], start)
        findings += _behind_the_end(check.topic, [file for file, _ in own], end)
        stretches = _overlap(own, start, end)
        if stretches:
            reading = Reading("offset", timestamps=True)
            pairings.append(Pairing(Half(topic, reading, stretches), Half(side, reading, stretches)))
    compared = compare(run, pairings, look.read, check.title)
    records = sum(file.records for file in files)
    notes = list(_not_archived(check.topic, catalogue, bounds))
    return verdict_of(check.title, records, [*findings, *_findings(compared)], notes)


def _examine(read: Read, task: _File) -> _Examined:
    """One file against its checksum, and by itself."""
    from headrace.archive.place import place_of

    file, name = task.file, task.side.name
    damage = ""
    try:
        check_digest(place_of(task.side.location), name, file)
    except (ArchiveDamaged, FileNotFoundError) as error:
        damage = error.message if isinstance(error, ArchiveDamaged) else f"{name}/{file.name} is missing"
    stretch = Stretch(file.partition, file.first, file.last + 1)
    try:
        offsets = (batch.column(0).to_pylist() for batch in read(task.side, stretch, ("offset",)))
        present, findings = in_order(name, file.partition, offsets)
    except (ArchiveDamaged, FileNotFoundError, OSError) as error:
        return _Examined(damage or f"{name}/{file.name} cannot be read: {error}", False, ())
    count = len(present) + sum(one.kind == "duplicated" for one in findings)
    if count < file.records:
        detail = f"{name}/{file.name} has {count} records, where the manifest has {file.records}"
        lost = Finding("lost", name, file.partition, file.first, file.last, count=file.records - count, detail=detail)
        findings.append(lost)
    return _Examined(damage, True, findings)


def _damages(topic: str, files: Sequence[tuple[ArchivedFile, _Examined]], start: int, end: int) -> Iterator[Finding]:
    """Where the topic still has the offsets, the comparison with it tells more than a look at the file alone."""
    for file, told in files:
        where = topic, file.partition, file.first, file.last
        if not told.is_there:
            yield Finding("lost", *where, count=file.records, detail=told.damage)
            continue
        if told.damage:
            yield Finding("altered", *where, detail=told.damage)
        yield from (one for one in told.findings if one.offset is None or not start <= one.offset < end)


def _gaps(topic: str, files: Sequence[ArchivedFile], start: int) -> Iterator[Finding]:
    """What was not archived and has left the topic."""
    reached = files[0].first
    for first, following in [*((file.first, file.last + 1) for file in files), (start, start)]:
        last = min(first, start) - 1
        if last >= reached:
            detail = "neither the archive nor the topic has these offsets"
            count = last - reached + 1
            yield Finding("lost", topic, files[0].partition, reached, last, count=count, detail=detail)
        reached = max(reached, following)


def _behind_the_end(topic: str, files: Sequence[ArchivedFile], end: int) -> Iterator[Finding]:
    """What the archive has and the topic has lost: a log starts later as time goes on, and never ends earlier."""
    for file in files:
        first = max(file.first, end)
        if first <= file.last:
            detail = f"is in the archive, and the topic ends at offset {end}: it has lost its end"
            yield Finding("lost", topic, file.partition, first, file.last, count=file.last - first + 1, detail=detail)


def _overlap(files: Sequence[tuple[ArchivedFile, _Examined]], start: int, end: int) -> list[Stretch]:
    """Stretches as the files have them: so that a file that cannot be read takes nothing else along."""
    readable = [file for file, told in files if told.is_there]
    ranges = [(file.partition, max(file.first, start), min(file.last + 1, end)) for file in readable]
    return [Stretch(*one) for one in ranges if one[1] < one[2]]


def _not_archived(topic: str, catalogue: Catalogue, bounds: Mapping[int, tuple[int, int]]) -> Iterator[str]:
    for partition, (start, end) in bounds.items():
        if (behind := end - max(start, catalogue.end_offset(partition) or 0)) > 0:
            yield f"{topic}[{partition}]: the last {behind} offsets are not archived yet"


# Replay


def check_replay(run: Run, check: ReplayCheck, location: str | None, look: Look) -> Verdict:
    source: Side = Topic(look.brokers, check.topic) if location is None else Archived(location, check.topic)
    target = Topic(look.brokers, check.target)
    expected, found = _clipped(_stretches(source, look), check), _stretches(target, look)
    if set(found) < set(expected):
        raise InvalidRequest(
            f"{check.target} has {len(found)} partitions and {check.topic} has {len(expected)}: "
            "partitions are compared one by one, so there must be as many"
        )
    by = _by(check, target, found, look)
    own = Reading(
        "content" if by == "content" else "offset",
        check.timestamps,
        from_ms=None if check.from_time is None else parse_time(check.from_time),
        to_ms=None if check.to_time is None else parse_time(check.to_time),
    )
    pairings = []
    for partition in found:
        left = Half(source, own, expected.get(partition, [Stretch(partition, 0, 0)]))
        right = Half(target, Reading(by, check.timestamps, check.topic, partition), found[partition])
        pairings.append(Pairing(left, right))
    compared = compare(run, pairings, look.read, check.title)
    how = {"origin": "matched by the headers that tell their origin", "content": "matched by their content"}[by]
    records = sum(one.records for one in compared)
    return verdict_of(check.title, records, _findings(compared), [f"records were {how}"])


def _stretches(side: Side, look: Look) -> dict[int, list[Stretch]]:
    """By partition, at least one of each: it names the partition also where there is nothing to read."""
    if isinstance(side, Topic):
        found = {partition: cut(partition, *bounds) for partition, bounds in look.bounds(side.name).items()}
    else:
        catalogue = look.catalogue(side)
        found = {partition: [] for partition in range(max(catalogue.partitions, default=-1) + 1)}
        for file in catalogue.all_files:
            found[file.partition].append(Stretch(file.partition, file.first, file.last + 1))
    return {partition: stretches or [Stretch(partition, 0, 0)] for partition, stretches in found.items()}


def _clipped(stretches: Mapping[int, Sequence[Stretch]], check: ReplayCheck) -> dict[int, list[Stretch]]:
    """What lies within the offsets that were to be replayed."""

    def clipped(one: Stretch) -> Stretch:
        start = max(one.start, check.from_offset)
        end = one.end if check.to_offset is None else min(one.end, check.to_offset)
        return Stretch(one.partition, start, max(start, end))

    return {partition: [clipped(one) for one in some] for partition, some in stretches.items()}


def _by(check: ReplayCheck, target: Topic, stretches: Mapping[int, Sequence[Stretch]], look: Look) -> By:
    """The headers decide unless the settings do: those of the first record of the target that there is."""
    if check.match != "auto":
        return check.match
    for partition, some in stretches.items():
        stretch = Stretch(partition, some[0].start, min(some[0].start + _SAMPLED, some[0].end))
        reading = Reading("origin", False, check.topic, partition)
        for batch in look.read(target, stretch, reading.columns):
            if len(batch):
                return "content" if identities_of(batch, reading)[0] is None else "origin"
    return "content"


def _findings(compared: Sequence[Compared]) -> Iterator[Finding]:
    return (finding for one in compared for finding in one.findings)
