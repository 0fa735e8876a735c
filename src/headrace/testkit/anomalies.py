"""Find anomalies in a history: what a correct log or cluster can never show. Pure; the rules are independent.

    inconsistent offset   one position in the log held two values
    lost write            acknowledged, and a reader went past its offset, but no reader found it
    unseen                acknowledged, but not in the log at the end
    vanished              read by a client, but not in the log at the end
    duplicate             one value at two positions
    unexpected            a value that no client sent
    nonmonotonic poll     a reader went back, or skipped a record
    nonmonotonic send     a later send of one producer got an earlier position
    real-time order       sent after another was acknowledged, but placed before it
    commit lost           a group's offset went back behind an acknowledged commit, or was never committed
    group skip            a group committed past a record that none of its members received

Of clusters, and of topics with transactions:

    diverged              two replicas hold different bytes below the offset that both report as committed
    mark back             a log's start or its readable end went back, as clients saw it
    aborted read          a read_committed reader received an aborted record
    copied twice, not copied, copied out of order
                          of an exactly-once copy by transactions

The whole log must have been read into `History.final`. Records below `History.deleted` may be missing and may be passed
over; all other rules hold for them too. A record is identified by (partition, offset); values are unique.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from headrace.testkit.history import (
    NEVER,
    CommitOperation,
    History,
    OffsetFetchOperation,
    SendOperation,
    WatermarkOperation,
)

SHOWN_BYTES = 24


class Anomaly(NamedTuple):
    kind: str
    partition: int
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} in partition {self.partition}: {self.detail}"


RecordPosition = tuple[int, int]
Rule = Callable[[History], Iterator[Anomaly]]


def find_anomalies(history: History) -> list[Anomaly]:
    """All anomalies of a single broker."""
    return [anomaly for rule in RULES for anomaly in rule(history)]


def inconsistent_offsets(history: History) -> Iterator[Anomaly]:
    held: dict[RecordPosition, bytes] = {}
    for position, value in _reported_positions(history):
        if held.setdefault(position, value) != value:
            yield Anomaly(
                "inconsistent offset",
                position[0],
                f"offset {position[1]} held {_show(held[position])} and {_show(value)}",
            )


def lost_writes(history: History) -> Iterator[Anomaly]:
    seen = {value for _, value in _read(history)}
    furthest: dict[int, int] = {}
    for (partition, offset), _ in _read(history):
        furthest[partition] = max(offset, furthest.get(partition, -1))
    for send in _acknowledged(history):
        if send.value not in seen and history.deleted.get(send.partition, 0) <= send.offset < furthest.get(
            send.partition, -1
        ):
            past = f"offset {furthest[send.partition]} was read, it never was"
            yield Anomaly(
                "lost write", send.partition, f"{_show(send.value)} was acknowledged at {send.offset}; {past}"
            )


def find_unseen(history: History) -> Iterator[Anomaly]:
    final = {partition: {value for _, value in log} for partition, log in history.final.items()}
    for send in history.sends:
        # A send that was acknowledged without an offset may be below the deleted offset.
        is_deleted = send.offset < history.deleted.get(send.partition, -1)
        if send.is_ok and send.value not in final.get(send.partition, ()) and not is_deleted:
            yield Anomaly(
                "unseen", send.partition, f"{_show(send.value)} was acknowledged at {send.offset} and is not in the log"
            )


def find_vanished(history: History) -> Iterator[Anomaly]:
    final = {(partition, offset) for partition, log in history.final.items() for offset, _ in log}
    for position in dict.fromkeys(position for position, _ in _polled(history)):
        if position not in final and position[1] >= history.deleted.get(position[0], 0):
            yield Anomaly("vanished", position[0], f"offset {position[1]} was read once and is no longer in the log")


def duplicates(history: History) -> Iterator[Anomaly]:
    positions: dict[bytes, RecordPosition] = {}
    for position, value in _reported_positions(history):
        if positions.setdefault(value, position) != position:
            yield Anomaly("duplicate", position[0], f"{_show(value)} lies at {positions[value]} and at {position}")


def unexpected(history: History) -> Iterator[Anomaly]:
    sent = {(send.partition, send.value) for send in history.sends}
    for position, value in dict.fromkeys(_read(history)):
        if (position[0], value) not in sent:
            detail = f"offset {position[1]} holds {_show(value)}, which was not sent there"
            yield Anomaly("unexpected", position[0], detail)


def nonmonotonic_polls(history: History) -> Iterator[Anomaly]:
    """A plain reader receives every offset once, in order; a member of a group does so within each poll. With gaps,
    some offsets are never delivered."""
    stands: dict[tuple[str, int], int] = {}
    for poll in history.polls:
        offsets = [offset for offset, _ in poll.records]
        if not poll.group:
            reader = (poll.client, poll.partition)
            offsets.insert(0, stands.get(reader, offsets[0] - 1))
            stands[reader] = offsets[-1]
        for before, after in pairwise(offsets):
            may_skip = history.has_gaps or after <= history.deleted.get(poll.partition, 0)
            if after <= before or (after > before + 1 and not may_skip):
                yield Anomaly("nonmonotonic poll", poll.partition, f"{poll.client} received {before} and then {after}")


def nonmonotonic_sends(history: History) -> Iterator[Anomaly]:
    last: dict[tuple[str, int], SendOperation] = {}
    for send in _acknowledged(history):  # in the order in which they began
        before = last.get((send.client, send.partition))
        if before is not None and send.offset <= before.offset:
            first, then = (f"{_show(each.value)}, which is at {each.offset}" for each in (before, send))
            yield Anomaly("nonmonotonic send", send.partition, f"{send.client} sent {first}, and then {then}")
        last[send.client, send.partition] = send


def real_time_order(history: History) -> Iterator[Anomaly]:
    sends = defaultdict[int, list[SendOperation]](list)
    for send in _acknowledged(history):
        sends[send.partition].append(send)
    for partition, began in sends.items():
        ended = sorted(began, key=lambda send: send.ended)
        at, highest = 0, None
        for send in began:
            while ended[at].ended < send.began:
                highest = ended[at] if highest is None or ended[at].offset > highest.offset else highest
                at += 1
            if highest is not None and send.offset <= highest.offset:
                acknowledged = f"{_show(highest.value)} was acknowledged at {highest.offset}"
                yield Anomaly(
                    "real-time order", partition, f"{_show(send.value)} got {send.offset} after {acknowledged}"
                )


def lost_commits(history: History) -> Iterator[Anomaly]:
    """A fetched offset must be one whose commit may be the last one that took effect.

    A commit has taken effect when it is acknowledged or first fetched.
    """
    commits = defaultdict[tuple[str, int], list[CommitOperation]](list)
    for commit in history.commits:
        commits[commit.group, commit.partition].append(commit)
    first_found = dict[tuple[int, int], int]()
    for found in history.found:  # in the order in which they ended
        candidates = [c for c in commits[found.group, found.partition] if c.began < found.ended]
        ends = [min(c.ended, first_found.get((c.partition, c.began), NEVER)) for c in candidates]
        settled = [c.began for c, ended in zip(candidates, ends, strict=True) if ended < found.began]
        last_settled = max(settled, default=-1)
        possible = {c.offset for c, ended in zip(candidates, ends, strict=True) if ended > last_settled}
        if not settled:
            possible.add(-1)
        if found.offset not in possible:
            yield Anomaly("commit lost", found.partition, _commit_detail(found, possible))
        meant = [c for c in candidates if c.offset == found.offset]
        if len(meant) == 1:
            first_found.setdefault((found.partition, meant[0].began), found.ended)


def group_skips(history: History) -> Iterator[Anomaly]:
    given = defaultdict[tuple[str, int], set[int]](set)
    for poll in history.polls:
        if poll.group:
            given[poll.group, poll.partition].update(offset for offset, _ in poll.records)
    furthest = dict[tuple[str, int], int]()
    for commit in history.commits:
        where = (commit.group, commit.partition)
        furthest[where] = max(commit.offset, furthest.get(where, 0))
    for (group, partition), end in furthest.items():
        first = history.deleted.get(partition, 0)
        skipped = [offset for offset in range(first, end) if offset not in given[group, partition]]
        if skipped:
            yield Anomaly("group skip", partition, f"{group} committed {end}, but no member received {skipped}")


RULES: tuple[Rule, ...] = (
    inconsistent_offsets,
    lost_writes,
    find_unseen,
    find_vanished,
    duplicates,
    unexpected,
    nonmonotonic_polls,
    nonmonotonic_sends,
    real_time_order,
    lost_commits,
    group_skips,
)


def _show(value: bytes) -> str:
    return repr(value[:SHOWN_BYTES]) + ("" if len(value) <= SHOWN_BYTES else "...")


def _commit_detail(found: OffsetFetchOperation, possible: set[int]) -> str:
    return f"{found.client} found {found.offset} committed by {found.group}; it can only be one of {sorted(possible)}"


def _acknowledged(history: History) -> Iterator[SendOperation]:
    """The acknowledged sends with a known offset."""
    return (send for send in history.sends if send.is_ok and send.offset >= 0)


def _polled(history: History) -> Iterator[tuple[RecordPosition, bytes]]:
    for poll in history.polls:
        for offset, value in poll.records:
            yield (poll.partition, offset), value


def _read(history: History) -> Iterator[tuple[RecordPosition, bytes]]:
    """All records that a client received, including the final read."""
    yield from _polled(history)
    for partition, log in history.final.items():
        for offset, value in log:
            yield (partition, offset), value


def _reported_positions(history: History) -> Iterator[tuple[RecordPosition, bytes]]:
    """All positions of records that the broker reported."""
    yield from _read(history)
    for send in _acknowledged(history):
        yield (send.partition, send.offset), send.value


def find_replicated_anomalies(history: History) -> list[Anomaly]:
    """All anomalies of a replicated topic without transactions."""
    return [anomaly for rule in (*RULES, *REPLICATED) for anomaly in rule(history)]


def find_copy_anomalies(source: History, copy: History, original: Callable[[bytes], bytes]) -> list[Anomaly]:
    """All anomalies of an exactly-once copy of a topic by transactions. `original` maps a copied value to its original:
    each attempt to copy writes a different value."""
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
    """A lookup that begins after another has ended returns no smaller offset."""
    marks = defaultdict[tuple[str, int], list[WatermarkOperation]](list)
    for mark in history.marks:  # in the order in which they ended
        marks[mark.what, mark.partition].append(mark)
    for (what, partition), found in marks.items():
        for later in found:
            before = [mark for mark in found if mark.ended < later.began and mark.offset > later.offset]
            if before:
                yield Anomaly("mark back", partition, f"its {what} was {before[0].offset}, then {later.offset}")


def aborted_reads(history: History) -> Iterator[Anomaly]:
    for (partition, offset), value in dict.fromkeys(_read(history)):
        if value in history.aborted:
            yield Anomaly("aborted read", partition, f"{value!r} at {offset} was aborted, but a reader received it")


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
