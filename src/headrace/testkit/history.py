"""What the clients of a simulated broker did and saw: the evidence that `anomalies` judges.

An operation is noted when it begins and again when it succeeds. One that never does stays unknown for ever: a request
whose answer was lost may still take effect. Moments are counted, not timed: one thread, one order. Values are unique.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

NEVER = 1 << 62


@dataclass(slots=True)
class ClientOperation:
    """`ended` is the moment of success; an operation that never ended may take effect at any time."""

    client: str
    partition: int
    began: int
    ended: int = NEVER

    @property
    def is_ok(self) -> bool:
        return self.ended != NEVER


@dataclass(slots=True)
class SendOperation(ClientOperation):
    """A value on its way into the log; `offset` is known once the broker has told it, and may be -1 even then."""

    value: bytes = b""
    offset: int = -1


@dataclass(slots=True)
class CommitOperation(ClientOperation):
    """A group's wish to remember that it has read up to `offset`."""

    group: str = ""
    offset: int = -1


@dataclass(slots=True)
class OffsetFetchOperation(ClientOperation):
    """What the broker said that a group had committed; -1: nothing."""

    group: str = ""
    offset: int = -1


@dataclass(slots=True)
class WatermarkOperation(ClientOperation):
    """Where a broker said that the log of a partition starts, or up to where it can be read."""

    what: str = ""
    offset: int = -1


@dataclass(frozen=True, slots=True)
class ReplicaContents:
    """One broker's copy of a partition at the end: every batch by its first offset, byte for byte."""

    high_watermark: int
    batches: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class PolledRecords:
    """Records of one partition that a client got in one go, as (offset, value). `group`: it reads for a group."""

    client: str
    partition: int
    moment: int
    records: tuple[tuple[int, bytes], ...]
    group: str = ""


@dataclass(slots=True)
class History:
    """Of one topic. `has_gaps`: its readers see committed transactions only, and pass by what else is in the log.
    `aborted`: what was written in transactions that were told to be aborted."""

    sends: list[SendOperation] = field(default_factory=list)
    polls: list[PolledRecords] = field(default_factory=list)
    commits: list[CommitOperation] = field(default_factory=list)
    found: list[OffsetFetchOperation] = field(default_factory=list)
    final: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)  # the log of each partition, at the end
    marks: list[WatermarkOperation] = field(default_factory=list)
    replicas: dict[int, dict[int, ReplicaContents]] = field(
        default_factory=dict
    )  # by partition and node id, at the end
    aborted: set[bytes] = field(default_factory=set)
    deleted: dict[int, int] = field(default_factory=dict)
    """by partition: records below this offset may have been deleted on purpose (DeleteRecords)"""
    has_gaps: bool = False
    now: int = 0

    def begin_send(self, client: str, partition: int, value: bytes) -> SendOperation:
        send = SendOperation(client, partition, self._tick(), value=value)
        self.sends.append(send)
        return send

    def begin_commit(self, client: str, group: str, partition: int, offset: int) -> CommitOperation:
        commit = CommitOperation(client, partition, self._tick(), group=group, offset=offset)
        self.commits.append(commit)
        return commit

    def begin_offset_fetch(self, client: str, group: str, partition: int) -> OffsetFetchOperation:
        """A client asks what the group has committed; note only what was answered."""
        return OffsetFetchOperation(client, partition, self._tick(), group=group)

    def end_send(self, send: SendOperation, offset: int) -> None:
        send.offset, send.ended = offset, self._tick()

    def end_commit(self, commit: CommitOperation) -> None:
        commit.ended = self._tick()

    def end_offset_fetch(self, look: OffsetFetchOperation, offset: int) -> None:
        look.offset, look.ended = offset, self._tick()
        self.found.append(look)

    def begin_mark(self, client: str, what: str, partition: int) -> WatermarkOperation:
        """A client asks for a log's start or end; note only what was answered."""
        return WatermarkOperation(client, partition, self._tick(), what=what)

    def end_mark(self, mark: WatermarkOperation, offset: int) -> None:
        mark.offset, mark.ended = offset, self._tick()
        self.marks.append(mark)

    def record_poll(self, client: str, records: Iterable[tuple[int, int, bytes]], group: str = "") -> None:
        """One answer to one client, as (partition, offset, value)."""
        moment, by_partition = self._tick(), dict[int, list[tuple[int, bytes]]]()
        for partition, offset, value in records:
            by_partition.setdefault(partition, []).append((offset, value))
        for partition, found in by_partition.items():
            self.polls.append(PolledRecords(client, partition, moment, tuple(found), group))

    @property
    def digest(self) -> str:
        whole = hashlib.blake2b(digest_size=16)
        for part in (self.sends, self.polls, self.commits, self.found, self.marks, sorted(self.final.items())):
            whole.update(repr(part).encode())
        return whole.hexdigest()

    def _tick(self) -> int:
        self.now += 1
        return self.now
