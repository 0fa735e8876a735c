"""Two sides, partition by partition: pieces are compared by digest, and only where those differ, record by record.

The first pass reads everything once, wherever Spark runs its tasks, and brings back a few bytes per piece. The second
reads again what lies in the pieces that differ. What came in excess may be a copy of a record in a piece that does not
differ, so a third pass looks for such records in all of the expected side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from headrace.pipeline.audit.findings import AuditFinding, findings_of
from headrace.pipeline.audit.record_comparison import (
    Difference,
    RecordDigest,
    align,
    compare_by_content,
    compare_by_identity,
    differing_fields,
    gaps,
)
from headrace.pipeline.audit.record_digests import (
    DigestBlock,
    DigestOptions,
    RowSpan,
    digest_blocks,
    identities_of,
    join_blocks,
    record_digests,
)
from headrace.pipeline.job import JobRun
from headrace.pipeline.spark_tasks import PartitionRange, ReadSource, RecordSource, run_by_spark

RECORD_DIGESTS_MAX = 1_000_000
"""Records of a partition that are looked at closely: they are held in memory all at once."""

_LOOKED_FOR_MAX = 50_000

Result = TypeVar("Result")


class ComparedSide(msgspec.Struct, frozen=True):
    """One side of one partition, and how its records are looked at."""

    side: RecordSource
    reading: DigestOptions
    stretches: Sequence[PartitionRange]


class PartitionPairing(msgspec.Struct, frozen=True):
    """A partition of the expected side and the one that should have the same records."""

    expected: ComparedSide
    found: ComparedSide


class ComparisonResult(msgspec.Struct, frozen=True):
    records: int
    findings: Sequence[AuditFinding]


class _DigestTask(msgspec.Struct, frozen=True):
    side: RecordSource
    reading: DigestOptions
    stretch: PartitionRange
    index: int
    spans: Sequence[RowSpan] = ()
    wanted: frozenset[object] = frozenset()


def compare(run: JobRun, pairings: Sequence[PartitionPairing], read: ReadSource, note: str) -> list[ComparisonResult]:
    """What came of each pairing."""
    halves = [half for pairing in pairings for half in (pairing.expected, pairing.found)]
    digested = _run_by_side(run, partial(_digest, read), [_reading_tasks(half) for half in halves], f"{note}: reading")
    results: list[ComparisonResult] = []
    for number, pairing in enumerate(pairings):
        whole = join_blocks(digested[2 * number]), join_blocks(digested[2 * number + 1])
        results.append(_compared(run, pairing, *whole, read, note))
    return results


def _compared(
    run: JobRun,
    pairing: PartitionPairing,
    expected_pieces: list[DigestBlock],
    found_pieces: list[DigestBlock],
    read: ReadSource,
    note: str,
) -> ComparisonResult:
    count = sum(piece.count for piece in expected_pieces)
    left, right, findings = _differing(pairing, expected_pieces, found_pieces)
    if left or right:
        tasks = [_record_tasks(pairing.expected, left), _record_tasks(pairing.found, right)]
        looked = _run_by_side(run, partial(_read_record_digests, read), tasks, f"{note}: looking at what differs")
        expected, found = ([one for some in half for one in some] for half in looked)
        by_content = pairing.expected.reading.by == "content"
        differences = (compare_by_content if by_content else compare_by_identity)(expected, found)
        differences = _with_copies(run, pairing.expected, expected, found, differences, read, note)
        findings = [*findings_of(*_place(pairing), expected, found, differences), *findings]
    return ComparisonResult(count, findings)


def _differing(
    pairing: PartitionPairing, expected: Sequence[DigestBlock], found: Sequence[DigestBlock]
) -> tuple[list[DigestBlock], list[DigestBlock], list[AuditFinding]]:
    """The pieces to be looked into on both sides, and what is said of those that are too many."""
    left: list[DigestBlock] = []
    right: list[DigestBlock] = []
    findings: list[AuditFinding] = []
    room = RECORD_DIGESTS_MAX
    pairs = align([piece.sum for piece in expected], [piece.sum for piece in found])
    for here, there in gaps(pairs, len(expected), len(found)):
        some, others = [expected[i] for i in here], [found[j] for j in there]
        count, other_count = (sum(piece.count for piece in digest_blocks) for digest_blocks in (some, others))
        room -= count + other_count
        if room >= 0:
            left += some
            right += others
        else:
            detail = f"{count} records in a row and {other_count} that were found differ, too many to look at each"
            findings.append(AuditFinding("altered", *_place(pairing), count=max(count, other_count), detail=detail))
    return left, right, findings


def _place(pairing: PartitionPairing) -> tuple[str, int]:
    return pairing.expected.side.name, pairing.expected.stretches[0].partition


def _with_copies(
    run: JobRun,
    half: ComparedSide,
    expected: list[RecordDigest],
    found: Sequence[RecordDigest],
    differences: list[Difference],
    read: ReadSource,
    note: str,
) -> list[Difference]:
    """Tell copies of records that lie elsewhere from what is foreign; their originals join the expected entries."""
    by_content = half.reading.by == "content"
    foreign = {
        index: entry.content if by_content else entry.identity
        for index, one in enumerate(differences)
        if one.kind == "foreign" and one.found is not None
        for entry in (found[one.found],)
    }
    wanted = frozenset(list(dict.fromkeys(key for key in foreign.values() if key is not None))[:_LOOKED_FOR_MAX])
    if not wanted:
        return differences
    originals: dict[object, RecordDigest] = {}
    for told in run_by_spark(
        run, partial(_find_copies, read), _reading_tasks(half, wanted), f"{note}: looking for originals"
    ):
        for key, entry in told:
            originals.setdefault(key, entry)
    resolved = list(differences)
    for index, key in foreign.items():
        if key in originals:
            original, copy = originals[key], differences[index].found
            assert copy is not None
            resolved[index] = Difference("duplicated", len(expected), copy, differing_fields(original, found[copy]))
            expected.append(original)
    return resolved


# What the tasks do


def _digest(read: ReadSource, task: _DigestTask) -> list[DigestBlock]:
    return list(digest_blocks(_rows(read, task), task.reading, task.index))


def _read_record_digests(read: ReadSource, task: _DigestTask) -> list[RecordDigest]:
    """The entries of the spans, which are in order."""
    looked: list[RecordDigest] = []
    row = 0
    for batch in _rows(read, task):
        end = row + len(batch)
        for span in task.spans:
            start, stop = max(span.first_row, row), min(span.first_row + span.count, end)
            if start < stop:
                looked += record_digests(batch.slice(start - row, stop - start), task.reading)
        row = end
    return looked


def _find_copies(read: ReadSource, task: _DigestTask) -> list[tuple[object, RecordDigest]]:
    located: list[tuple[object, RecordDigest]] = []
    for batch in _rows(read, task):
        if task.reading.by == "content":
            located += [(one.content, one) for one in record_digests(batch, task.reading) if one.content in task.wanted]
            continue
        for row, identity in enumerate(identities_of(batch, task.reading)):
            if identity in task.wanted:
                located += [(identity, one) for one in record_digests(batch.slice(row, 1), task.reading)]
    return located


def _rows(read: ReadSource, task: _DigestTask) -> Iterator[Any]:
    return task.reading.within(read(task.side, task.stretch, task.reading.columns))


# How they are made


def _run_by_side(
    run: JobRun, work: Callable[[_DigestTask], Result], tasks: Sequence[Sequence[_DigestTask]], note: str
) -> list[list[Result]]:
    """All tasks in one go, and the results as the tasks were given."""
    results = iter(run_by_spark(run, work, [task for some in tasks for task in some], note))
    return [[next(results) for _ in some] for some in tasks]


def _reading_tasks(half: ComparedSide, wanted: frozenset[object] = frozenset()) -> list[_DigestTask]:
    return [
        _DigestTask(half.side, half.reading, stretch, index, wanted=wanted)
        for index, stretch in enumerate(half.stretches)
    ]


def _record_tasks(half: ComparedSide, differing: Sequence[DigestBlock]) -> list[_DigestTask]:
    spans: dict[int, list[RowSpan]] = defaultdict(list)
    for piece in differing:
        for span in piece.spans:
            spans[span.stretch].append(span)
    return [_DigestTask(half.side, half.reading, half.stretches[index], index, spans[index]) for index in sorted(spans)]
