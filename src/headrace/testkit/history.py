"""The history of the clients of a simulated broker: the input of `anomalies`.

- An operation is recorded when it begins and when it succeeds. Otherwise its outcome is unknown forever: a request
  whose response was lost may still take effect.
- Moments are numbers of a counter, not times: there is one thread and one order. Values are unique.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

NEVER = 1 << 62


@dataclass(slots=True)
class ClientOperation:
    """`ended` is the moment of success. An operation that never ended may take effect at any time."""

    client: str
    partition: int
    began: int
    ended: int = NEVER

    @property
    def is_ok(self) -> bool:
        return self.ended != NEVER


@dataclass(slots=True)
class SendOperation(ClientOperation):
    """A produced value. `offset` is the one that the broker returned, and may be -1."""

    value: bytes = b""
    offset: int = -1


@dataclass(slots=True)
class CommitOperation(ClientOperation):
    """An offset commit of a group."""

    group: str = ""
    offset: int = -1


@dataclass(slots=True)
class OffsetFetchOperation(ClientOperation):
    """The committed offset of a group that the broker returned; -1 if there is none."""

    group: str = ""
    offset: int = -1


@dataclass(slots=True)
class WatermarkOperation(ClientOperation):
    """The start offset or the readable end of a partition that a broker returned."""

    what: str = ""
    offset: int = -1


@dataclass(frozen=True, slots=True)
class ReplicaContents:
    """One replica of a partition at the end: the bytes of every batch, by base offset."""

    high_watermark: int
    batches: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class PolledRecords:
    """Records of one partition that a client received in one poll, as (offset, value). `group`: the reader's group."""

    client: str
    partition: int
    moment: int
    records: tuple[tuple[int, bytes], ...]
    group: str = ""


@dataclass(slots=True)
class History:
    """The history of one topic. `has_gaps`: readers receive only committed transactions, so offsets have gaps.
    `aborted`: the values written in aborted transactions."""

    sends: list[SendOperation] = field(default_factory=list)
    polls: list[PolledRecords] = field(default_factory=list)
    commits: list[CommitOperation] = field(default_factory=list)
    found: list[OffsetFetchOperation] = field(default_factory=list)
    final: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)  # the log of each partition, at the end
    marks: list[WatermarkOperation] = field(default_factory=list)
    replicas: dict[int, dict[int, ReplicaContents]] = field(default_factory=dict)  # by partition and node id
    aborted: set[bytes] = field(default_factory=set)
    deleted: dict[int, int] = field(default_factory=dict)
    """By partition: records below this offset may have been deleted on purpose (DeleteRecords)."""
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
        """Begin a lookup of a committed offset. Only a successful one becomes part of the history."""
        return OffsetFetchOperation(client, partition, self._tick(), group=group)

    def end_send(self, send: SendOperation, offset: int) -> None:
        send.offset, send.ended = offset, self._tick()

    def end_commit(self, commit: CommitOperation) -> None:
        commit.ended = self._tick()

    def end_offset_fetch(self, fetch: OffsetFetchOperation, offset: int) -> None:
        fetch.offset, fetch.ended = offset, self._tick()
        self.found.append(fetch)

    def begin_mark(self, client: str, what: str, partition: int) -> WatermarkOperation:
        """Begin a lookup of a log's start or end. Only a successful one becomes part of the history."""
        return WatermarkOperation(client, partition, self._tick(), what=what)

    def end_mark(self, mark: WatermarkOperation, offset: int) -> None:
        mark.offset, mark.ended = offset, self._tick()
        self.marks.append(mark)

    def record_poll(self, client: str, records: Iterable[tuple[int, int, bytes]], group: str = "") -> None:
        """Record one response to one client, as (partition, offset, value)."""
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
