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

from headrace.pipeline.audit_align import align, gaps
from headrace.pipeline.audit_compare import Difference, Entry, compare_by_content, compare_by_identity, differing_fields
from headrace.pipeline.audit_digest import Piece, Reading, Span, entries, identities_of, joined, pieces
from headrace.pipeline.audit_findings import Finding, findings_of
from headrace.pipeline.audit_sources import Read, Side, Stretch, by_spark
from headrace.pipeline.job import Run

ENTRIES_MAX = 1_000_000
"""Records of a partition that are looked at closely: they are held in memory all at once."""

_LOOKED_FOR_MAX = 50_000

Result = TypeVar("Result")


class Half(msgspec.Struct, frozen=True):
    """One side of one partition, and how its records are looked at."""

    side: Side
    reading: Reading
    stretches: Sequence[Stretch]


class Pairing(msgspec.Struct, frozen=True):
    """A partition of the expected side and the one that should have the same records."""

    expected: Half
    found: Half


class Compared(msgspec.Struct, frozen=True):
    records: int
    findings: Sequence[Finding]


class _Task(msgspec.Struct, frozen=True):
    side: Side
    reading: Reading
    stretch: Stretch
    index: int
    spans: Sequence[Span] = ()
    wanted: frozenset[object] = frozenset()


def compare(run: Run, pairings: Sequence[Pairing], read: Read, note: str) -> list[Compared]:
    """What came of each pairing."""
    halves = [half for pairing in pairings for half in (pairing.expected, pairing.found)]
    digested = _by_half(run, partial(_digest, read), [_reading_tasks(half) for half in halves], f"{note}: reading")
    results: list[Compared] = []
    for number, pairing in enumerate(pairings):
        whole = joined(digested[2 * number]), joined(digested[2 * number + 1])
        results.append(_compared(run, pairing, *whole, read, note))
    return results


def _compared(
    run: Run, pairing: Pairing, expected_pieces: list[Piece], found_pieces: list[Piece], read: Read, note: str
) -> Compared:
    count = sum(piece.count for piece in expected_pieces)
    left, right, findings = _differing(pairing, expected_pieces, found_pieces)
    if left or right:
        tasks = [_looking_tasks(pairing.expected, left), _looking_tasks(pairing.found, right)]
        looked = _by_half(run, partial(_look, read), tasks, f"{note}: looking at what differs")
        expected, found = ([one for some in half for one in some] for half in looked)
        by_content = pairing.expected.reading.by == "content"
        differences = (compare_by_content if by_content else compare_by_identity)(expected, found)
        differences = _with_copies(run, pairing.expected, expected, found, differences, read, note)
        findings = [*findings_of(*_place(pairing), expected, found, differences), *findings]
    return Compared(count, findings)


def _differing(
    pairing: Pairing, expected: Sequence[Piece], found: Sequence[Piece]
) -> tuple[list[Piece], list[Piece], list[Finding]]:
    """The pieces to be looked into on both sides, and what is said of those that are too many."""
    left: list[Piece] = []
    right: list[Piece] = []
    findings: list[Finding] = []
    room = ENTRIES_MAX
    pairs = align([piece.sum for piece in expected], [piece.sum for piece in found])
    for here, there in gaps(pairs, len(expected), len(found)):
        some, others = [expected[i] for i in here], [found[j] for j in there]
        count, other_count = (sum(piece.count for piece in pieces) for pieces in (some, others))
        room -= count + other_count
        if room >= 0:
            left += some
            right += others
        else:
            detail = f"{count} records in a row and {other_count} that were found differ, too many to look at each"
            findings.append(Finding("altered", *_place(pairing), count=max(count, other_count), detail=detail))
    return left, right, findings


def _place(pairing: Pairing) -> tuple[str, int]:
    return pairing.expected.side.name, pairing.expected.stretches[0].partition


def _with_copies(
    run: Run,
    half: Half,
    expected: list[Entry],
    found: Sequence[Entry],
    differences: list[Difference],
    read: Read,
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
    originals: dict[object, Entry] = {}
    for told in by_spark(run, partial(_find, read), _reading_tasks(half, wanted), f"{note}: looking for originals"):
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


def _digest(read: Read, task: _Task) -> list[Piece]:
    return list(pieces(_rows(read, task), task.reading, task.index))


def _look(read: Read, task: _Task) -> list[Entry]:
    """The entries of the spans, which are in order."""
    looked: list[Entry] = []
    row = 0
    for batch in _rows(read, task):
        end = row + len(batch)
        for span in task.spans:
            start, stop = max(span.first_row, row), min(span.first_row + span.count, end)
            if start < stop:
                looked += entries(batch.slice(start - row, stop - start), task.reading)
        row = end
    return looked


def _find(read: Read, task: _Task) -> list[tuple[object, Entry]]:
    located: list[tuple[object, Entry]] = []
    for batch in _rows(read, task):
        if task.reading.by == "content":
            located += [(one.content, one) for one in entries(batch, task.reading) if one.content in task.wanted]
            continue
        for row, identity in enumerate(identities_of(batch, task.reading)):
            if identity in task.wanted:
                located += [(identity, one) for one in entries(batch.slice(row, 1), task.reading)]
    return located


def _rows(read: Read, task: _Task) -> Iterator[Any]:
    return task.reading.within(read(task.side, task.stretch, task.reading.columns))


# How they are made


def _by_half(
    run: Run, work: Callable[[_Task], Result], tasks: Sequence[Sequence[_Task]], note: str
) -> list[list[Result]]:
    """All tasks in one go, and the results as the tasks were given."""
    results = iter(by_spark(run, work, [task for some in tasks for task in some], note))
    return [[next(results) for _ in some] for some in tasks]


def _reading_tasks(half: Half, wanted: frozenset[object] = frozenset()) -> list[_Task]:
    return [
        _Task(half.side, half.reading, stretch, index, wanted=wanted) for index, stretch in enumerate(half.stretches)
    ]


def _looking_tasks(half: Half, differing: Sequence[Piece]) -> list[_Task]:
    spans: dict[int, list[Span]] = defaultdict(list)
    for piece in differing:
        for span in piece.spans:
            spans[span.stretch].append(span)
    return [_Task(half.side, half.reading, half.stretches[index], index, spans[index]) for index in sorted(spans)]
