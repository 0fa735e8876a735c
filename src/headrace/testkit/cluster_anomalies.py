"""Judges what only a cluster, or only a topic of transactions, can get wrong. Pure; each rule stands for itself.

diverged              two replicas hold different bytes below what both call committed
mark back             a log's start or its readable end went back, as clients saw it
aborted read          a reader of committed transactions was given what was aborted
copied twice, not copied, copied out of order
                      of a copy by transactions, which is exactly once
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from headrace.testkit.anomalies import (
    RULES,
    Anomaly,
    Rule,
    duplicates,
    find_vanished,
    inconsistent_offsets,
    nonmonotonic_polls,
)
from headrace.testkit.history import History, WatermarkOperation


def find_replicated_anomalies(history: History) -> list[Anomaly]:
    """Everything that is wrong with a topic that plain producers write to."""
    return [anomaly for rule in (*RULES, *REPLICATED) for anomaly in rule(history)]


def find_copy_anomalies(source: History, copy: History, original: Callable[[bytes], bytes]) -> list[Anomaly]:
    """Everything that is wrong with the copy of a topic, made by transactions. `original` tells of what a copied value
    is the copy: each attempt to copy writes another value."""
    found = [anomaly for rule in (*COPIED, *REPLICATED) for anomaly in rule(copy)]
    for partition, log in source.final.items():
        wanted = [value for _, value in log]
        found += _miscopied(partition, wanted, [original(value) for _, value in copy.final.get(partition, ())])
    return found


def diverged(history: History) -> Iterator[Anomaly]:
    for partition, replicas in history.replicas.items():
        for (a, first), (b, second) in combinations(sorted(replicas.items()), 2):
            end = min(first.high_watermark, second.high_watermark)
            start = max(first.batches[0][0], second.batches[0][0]) if first.batches and second.batches else end
            ours, theirs = (
                [batch for batch in replica.batches if start <= batch[0] < end] for replica in (first, second)
            )
            if ours != theirs:
                at = min(offset for offset, _ in set(ours) ^ set(theirs))
                yield Anomaly("diverged", partition, f"brokers {a} and {b} differ at {at}, below {end}")


def nonmonotonic_watermarks(history: History) -> Iterator[Anomaly]:
    """Whoever asks after another was answered is told no less."""
    marks = defaultdict[tuple[str, int], list[WatermarkOperation]](list)
    for mark in history.marks:  # in the order in which they ended
        marks[mark.what, mark.partition].append(mark)
    for (what, partition), told in marks.items():
        for later in told:
            before = [mark for mark in told if mark.ended < later.began and mark.offset > later.offset]
            if before:
                yield Anomaly("mark back", partition, f"its {what} was {before[0].offset}, then {later.offset}")


def aborted_reads(history: History) -> Iterator[Anomaly]:
    given = [(poll.partition, record) for poll in history.polls for record in poll.records]
    given += [(partition, record) for partition, log in history.final.items() for record in log]
    for partition, (offset, value) in dict.fromkeys(given):
        if value in history.aborted:
            yield Anomaly("aborted read", partition, f"{value!r} at {offset} was aborted, and given to a reader")


def _miscopied(partition: int, wanted: Sequence[bytes], found: Sequence[bytes]) -> Iterator[Anomaly]:
    seen = set[bytes]()
    for value in found:
        if value in seen:
            yield Anomaly("copied twice", partition, f"{value!r}")
        seen.add(value)
    for value in wanted:
        if value not in seen:
            yield Anomaly("not copied", partition, f"{value!r}")
    if set(wanted) == seen and len(found) == len(wanted) and list(found) != list(wanted):
        yield Anomaly("copied out of order", partition, f"{found} instead of {wanted}")


REPLICATED: tuple[Rule, ...] = (diverged, nonmonotonic_watermarks)
COPIED: tuple[Rule, ...] = (inconsistent_offsets, find_vanished, duplicates, nonmonotonic_polls, aborted_reads)
