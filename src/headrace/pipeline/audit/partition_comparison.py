"""Compare two sources, partition by partition: by digests of blocks, then record by record where blocks differ.

- The first pass reads everything once, in Spark tasks, and returns a few bytes per block.
- The second pass reads the blocks that differ again.
- An additional record may be a copy of one in a block that does not differ. A third pass therefore looks for such
  records in the whole expected source.
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
from headrace.pipeline.spark_tasks import PartitionRange, ReadSource, RecordSource, run_by_spark, within_times

RECORD_DIGESTS_MAX = 1_000_000
"""The limit of records per partition that are compared individually: they are all in memory."""

_ORIGINALS_MAX = 50_000

Result = TypeVar("Result")


class ComparedSide(msgspec.Struct, frozen=True):
    """One source of a pairing, and how its records are digested."""

    side: RecordSource
    options: DigestOptions
    ranges: Sequence[PartitionRange]


class PartitionPairing(msgspec.Struct, frozen=True):
    """A partition of the expected source, and the partition that should have the same records."""

    expected: ComparedSide
    found: ComparedSide


class ComparisonResult(msgspec.Struct, frozen=True):
    records: int
    findings: Sequence[AuditFinding]


class _DigestTask(msgspec.Struct, frozen=True):
    side: RecordSource
    options: DigestOptions
    offsets: PartitionRange
    index: int
    spans: Sequence[RowSpan] = ()
    wanted: frozenset[object] = frozenset()


def compare(run: JobRun, pairings: Sequence[PartitionPairing], read: ReadSource, note: str) -> list[ComparisonResult]:
    """Compare all pairings; the results are in their order."""
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
    expected_blocks: list[DigestBlock],
    found_blocks: list[DigestBlock],
    read: ReadSource,
    note: str,
) -> ComparisonResult:
    count = sum(block.count for block in expected_blocks)
    left, right, findings = _differing(pairing, expected_blocks, found_blocks)
    if left or right:
        tasks = [_record_tasks(pairing.expected, left), _record_tasks(pairing.found, right)]
        digests = _run_by_side(run, partial(_read_record_digests, read), tasks, f"{note}: comparing differing blocks")
        expected, found = ([one for some in half for one in some] for half in digests)
        by_content = pairing.expected.options.by == "content"
        differences = (compare_by_content if by_content else compare_by_identity)(expected, found)
        differences = _with_copies(run, pairing.expected, expected, found, differences, read, note)
        findings = [*findings_of(*_partition_of(pairing), expected, found, differences), *findings]
    return ComparisonResult(count, findings)


def _differing(
    pairing: PartitionPairing, expected: Sequence[DigestBlock], found: Sequence[DigestBlock]
) -> tuple[list[DigestBlock], list[DigestBlock], list[AuditFinding]]:
    """The differing blocks of both sides, and findings for those that exceed the limit."""
    left: list[DigestBlock] = []
    right: list[DigestBlock] = []
    findings: list[AuditFinding] = []
    room = RECORD_DIGESTS_MAX
    pairs = align([block.sum for block in expected], [block.sum for block in found])
    for here, there in gaps(pairs, len(expected), len(found)):
        some, others = [expected[i] for i in here], [found[j] for j in there]
        count, other_count = (sum(block.count for block in blocks) for blocks in (some, others))
        room -= count + other_count
        if room >= 0:
            left += some
            right += others
        else:
            detail = f"{count} expected and {other_count} found records differ, too many to compare individually"
            findings.append(
                AuditFinding("altered", *_partition_of(pairing), count=max(count, other_count), detail=detail)
            )
    return left, right, findings


def _partition_of(pairing: PartitionPairing) -> tuple[str, int]:
    return pairing.expected.side.name, pairing.expected.ranges[0].partition


def _with_copies(
    run: JobRun,
    half: ComparedSide,
    expected: list[RecordDigest],
    found: Sequence[RecordDigest],
    differences: list[Difference],
    read: ReadSource,
    note: str,
) -> list[Difference]:
    """Foreign records that have an original in the expected source are duplicates; append it to `expected`."""
    by_content = half.options.by == "content"
    foreign = {
        index: entry.content if by_content else entry.identity
        for index, one in enumerate(differences)
        if one.kind == "foreign" and one.found is not None
        for entry in (found[one.found],)
    }
    wanted = frozenset(list(dict.fromkeys(key for key in foreign.values() if key is not None))[:_ORIGINALS_MAX])
    if not wanted:
        return differences
    originals: dict[object, RecordDigest] = {}
    tasks = _reading_tasks(half, wanted)
    for located in run_by_spark(run, partial(_find_copies, read), tasks, f"{note}: looking for originals"):
        for key, entry in located:
            originals.setdefault(key, entry)
    resolved = list(differences)
    for index, key in foreign.items():
        if key in originals:
            original, copy = originals[key], differences[index].found
            assert copy is not None
            resolved[index] = Difference("duplicated", len(expected), copy, differing_fields(original, found[copy]))
            expected.append(original)
    return resolved


def _digest(read: ReadSource, task: _DigestTask) -> list[DigestBlock]:
    return list(digest_blocks(_rows(read, task), task.options, task.index))


def _read_record_digests(read: ReadSource, task: _DigestTask) -> list[RecordDigest]:
    """The digests of the rows in the spans, which are in order."""
    digests: list[RecordDigest] = []
    row = 0
    for batch in _rows(read, task):
        end = row + len(batch)
        for span in task.spans:
            start, stop = max(span.first_row, row), min(span.first_row + span.count, end)
            if start < stop:
                digests += record_digests(batch.slice(start - row, stop - start), task.options)
        row = end
    return digests


def _find_copies(read: ReadSource, task: _DigestTask) -> list[tuple[object, RecordDigest]]:
    located: list[tuple[object, RecordDigest]] = []
    for batch in _rows(read, task):
        if task.options.by == "content":
            located += [(one.content, one) for one in record_digests(batch, task.options) if one.content in task.wanted]
            continue
        for row, identity in enumerate(identities_of(batch, task.options)):
            if identity in task.wanted:
                located += [(identity, one) for one in record_digests(batch.slice(row, 1), task.options)]
    return located


def _rows(read: ReadSource, task: _DigestTask) -> Iterator[Any]:
    options = task.options
    return within_times(read(task.side, task.offsets, options.columns), options.from_ms, options.to_ms)


def _run_by_side(
    run: JobRun, work: Callable[[_DigestTask], Result], tasks: Sequence[Sequence[_DigestTask]], note: str
) -> list[list[Result]]:
    """Run all tasks at once; the results are grouped as the tasks are."""
    results = iter(run_by_spark(run, work, [task for some in tasks for task in some], note))
    return [[next(results) for _ in some] for some in tasks]


def _reading_tasks(half: ComparedSide, wanted: frozenset[object] = frozenset()) -> list[_DigestTask]:
    return [
        _DigestTask(half.side, half.options, range_, index, wanted=wanted) for index, range_ in enumerate(half.ranges)
    ]


def _record_tasks(half: ComparedSide, differing: Sequence[DigestBlock]) -> list[_DigestTask]:
    spans: dict[int, list[RowSpan]] = defaultdict(list)
    for block in differing:
        for span in block.spans:
            spans[span.range_index].append(span)
    return [_DigestTask(half.side, half.options, half.ranges[index], index, spans[index]) for index in sorted(spans)]
