"""Judges a history: what a log that keeps its promises can never show. Pure; each rule stands for itself.

    inconsistent offset   one place in the log held two values
    lost write            acknowledged, read past by somebody, and found by nobody
    unseen                acknowledged, but not in the log at the end
    vanished              somebody read it, but it is not in the log at the end
    duplicate             one value at two places
    unexpected            a value that nobody sent
    nonmonotonic poll     a reader was taken back, or past something
    nonmonotonic send     a later send of one producer got an earlier place
    real-time order       sent after the other was acknowledged, but placed before it
    commit lost           a group's offset went back behind an acknowledged commit, or was never committed
    group skip            a group committed past a record that none of its members was given

The whole log must have been read into `History.final`. Records below `History.deleted` may be missing and may be passed
over; everything else holds for them, too. A record is told by (partition, offset), a value is unique.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from headrace.testkit.history import NEVER, CommitOperation, History, OffsetFetchOperation, SendOperation

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
    """Everything that is wrong with it."""
    return [anomaly for rule in RULES for anomaly in rule(history)]


def inconsistent_offsets(history: History) -> Iterator[Anomaly]:
    held: dict[RecordPosition, bytes] = {}
    for place, value in _reported_positions(history):
        if held.setdefault(place, value) != value:
            yield Anomaly(
                "inconsistent offset", place[0], f"offset {place[1]} held {_show(held[place])} and {_show(value)}"
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
        # A send that was acknowledged without an offset may lie below the deleted offset.
        is_deleted = send.offset < history.deleted.get(send.partition, -1)
        if send.is_ok and send.value not in final.get(send.partition, ()) and not is_deleted:
            yield Anomaly(
                "unseen", send.partition, f"{_show(send.value)} was acknowledged at {send.offset} and is not in the log"
            )


def find_vanished(history: History) -> Iterator[Anomaly]:
    final = {(partition, offset) for partition, log in history.final.items() for offset, _ in log}
    for place in dict.fromkeys(place for place, _ in _polled(history)):
        if place not in final and place[1] >= history.deleted.get(place[0], 0):
            yield Anomaly("vanished", place[0], f"offset {place[1]} was read once and is not in the log any more")


def duplicates(history: History) -> Iterator[Anomaly]:
    places: dict[bytes, RecordPosition] = {}
    for place, value in _reported_positions(history):
        if places.setdefault(value, place) != place:
            yield Anomaly("duplicate", place[0], f"{_show(value)} lies at {places[value]} and at {place}")


def unexpected(history: History) -> Iterator[Anomaly]:
    sent = {(send.partition, send.value) for send in history.sends}
    for place, value in dict.fromkeys(_read(history)):
        if (place[0], value) not in sent:
            yield Anomaly("unexpected", place[0], f"offset {place[1]} holds {_show(value)}, which nobody sent there")


def nonmonotonic_polls(history: History) -> Iterator[Anomaly]:
    """A plain reader gets every offset once, in order; a member of a group does so within each poll. Where the history
    has gaps, some offsets are never given to anybody."""
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
                yield Anomaly("nonmonotonic poll", poll.partition, f"{poll.client} was given {before} and then {after}")


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
    """What is found must be an offset whose commit may be the last one that took effect.

    A commit has taken effect when it is acknowledged, or when somebody has found it, whichever comes first.
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
            yield Anomaly("group skip", partition, f"{group} committed {end}, but nobody in it was given {skipped}")


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
    """The sends whose places are known."""
    return (send for send in history.sends if send.is_ok and send.offset >= 0)


def _polled(history: History) -> Iterator[tuple[RecordPosition, bytes]]:
    for poll in history.polls:
        for offset, value in poll.records:
            yield (poll.partition, offset), value


def _read(history: History) -> Iterator[tuple[RecordPosition, bytes]]:
    """Everything that anybody was given, also in the end."""
    yield from _polled(history)
    for partition, log in history.final.items():
        for offset, value in log:
            yield (partition, offset), value


def _reported_positions(history: History) -> Iterator[tuple[RecordPosition, bytes]]:
    """Everything that the broker said about what lies where."""
    yield from _read(history)
    for send in _acknowledged(history):
        yield (send.partition, send.offset), send.value
