"""The committed offsets of all groups of a coordinator partition. Pure.

- `commit`, `forget` and `expired` return events and change nothing; `apply` changes the state and cannot fail. Whether
  a caller may commit is checked by its group (`check_commit`).
- An event is one record of `__consumer_offsets`; `OffsetForgotten` is a tombstone. Applying the log from its beginning
  restores the same state: the last record of a key wins.
- Offsets committed in a transaction are pending until its marker. They apply as of their own position in the log, not
  that of the marker: later commits for the same partition win. A compacted log keeps the last record of a key, so any
  other rule would result in another state after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView
from typing import NamedTuple
from uuid import UUID

import msgspec

from headrace.machines.groups.group_state import OffsetRetention
from headrace.model.errors import OffsetMetadataTooLarge
from headrace.model.ids import ZERO_ID

METADATA_BYTES_MAX = 4096
RETENTION_MS = 7 * 24 * 60 * 60 * 1000


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    """-1 unless an old client set a retention time for this commit."""
    topic_id: UUID
    """Zero if unknown: then the offset is valid for any topic of that name."""


class OffsetCommitted(msgspec.Struct, frozen=True):
    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset


class OffsetForgotten(msgspec.Struct, frozen=True):
    group_id: str
    topic: str
    partition: int


ProducerTransaction = tuple[int, int]
"""The partition of the log, and the producer id."""
OffsetKey = tuple[str, str, int]


class _PendingCommit(NamedTuple):
    position: int
    event: OffsetCommitted


class GroupOffsets:
    def __init__(self, metadata_bytes_max: int = METADATA_BYTES_MAX) -> None:
        self._metadata_bytes_max = metadata_bytes_max
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._pending: dict[ProducerTransaction, dict[OffsetKey, _PendingCommit]] = {}
        self._appended = 0  # number of pending offsets ever added: their order in the log

    def commit(
        self,
        group_id: str,
        topic: str,
        partition: int,
        offset: int,
        *,
        now_ms: int,
        leader_epoch: int = -1,
        metadata: str | None = "",
        topic_id: UUID = ZERO_ID,
        retention_ms: int = -1,
    ) -> OffsetCommitted:
        metadata = metadata or ""
        if len(metadata) > self._metadata_bytes_max:
            raise OffsetMetadataTooLarge(
                f"the metadata of the offset has {len(metadata)} characters; "
                f"the limit is {self._metadata_bytes_max} (offset.metadata.max.bytes)"
            )
        expire_timestamp_ms = -1 if retention_ms < 0 else now_ms + retention_ms
        committed = CommittedOffset(offset, leader_epoch, metadata, now_ms, expire_timestamp_ms, topic_id)
        return OffsetCommitted(group_id, topic, partition, committed)

    def apply(self, event: OffsetCommitted | OffsetForgotten) -> None:
        if self._pending:
            self._supersede((event.group_id, event.topic, event.partition), self._appended)
        self._set(event)

    def add_pending(self, transaction: ProducerTransaction, event: OffsetCommitted) -> None:
        """Add an offset that applies if the transaction commits."""
        self._appended += 1
        pending = self._pending.setdefault(transaction, {})
        pending[event.group_id, event.topic, event.partition] = _PendingCommit(self._appended, event)

    def end_transaction(self, transaction: ProducerTransaction, *, is_commit: bool) -> list[OffsetCommitted]:
        """Apply the marker of the transaction; return the offsets that it committed."""
        ended = self._pending.pop(transaction, {})
        if not is_commit:
            return []
        for key, pending in ended.items():
            self._supersede(key, pending.position)
            self._set(pending.event)
        return [pending.event for pending in ended.values()]

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        key = group_id, topic, partition
        return any(key in pending for pending in self._pending.values())

    def _supersede(self, key: OffsetKey, position: int) -> None:
        """An offset at `position` in the log applies to this key now: pending ones before it never will."""
        for pending in self._pending.values():
            if key in pending and pending[key].position <= position:
                del pending[key]

    def _set(self, event: OffsetCommitted | OffsetForgotten) -> None:
        if isinstance(event, OffsetCommitted):
            topics = self._groups.setdefault(event.group_id, {})
            topics.setdefault(event.topic, {})[event.partition] = event.committed
            return
        topics = self._groups.get(event.group_id, {})
        partitions = topics.get(event.topic, {})
        partitions.pop(event.partition, None)
        if not partitions:
            topics.pop(event.topic, None)
        if not topics:
            self._groups.pop(event.group_id, None)

    def fetch(self, group_id: str, topic: str, partition: int, topic_id: UUID = ZERO_ID) -> CommittedOffset | None:
        """Return None also if the offset belongs to an earlier topic of the same name."""
        committed = self._groups.get(group_id, {}).get(topic, {}).get(partition)
        if committed is None or not _same_topic_or_unknown(committed.topic_id, topic_id):
            return None
        return committed

    def fetch_all(self, group_id: str) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self._groups.get(group_id, {}).items():
            for partition, committed in partitions.items():
                yield topic, partition, committed

    def groups(self) -> KeysView[str]:
        return self._groups.keys()

    def has_offsets(self, group_id: str) -> bool:
        """Whether the group has offsets, including pending ones: such a group must not be treated as one that never
        existed."""
        return group_id in self._groups or any(
            key[0] == group_id for pending in self._pending.values() for key in pending
        )

    def forget(self, group_id: str, topic: str, partition: int) -> OffsetForgotten | None:
        if self.fetch(group_id, topic, partition) is None:
            return None
        return OffsetForgotten(group_id, topic, partition)

    def forget_group(self, group_id: str) -> list[OffsetForgotten]:
        return [OffsetForgotten(group_id, topic, partition) for topic, partition, _ in self.fetch_all(group_id)]

    def forget_topic(self, topic: str) -> list[OffsetForgotten]:
        return [
            OffsetForgotten(group_id, topic, partition)
            for group_id, topics in self._groups.items()
            for partition in topics.get(topic, {})
        ]

    def expired(
        self, group_id: str, retention: OffsetRetention | None, now_ms: int, retention_ms: int = RETENTION_MS
    ) -> list[OffsetForgotten]:
        """Return the offsets that have expired; `retention` is the group's rule, and None keeps everything."""
        if retention is None:
            return []
        return [
            OffsetForgotten(group_id, topic, partition)
            for topic, partition, committed in self.fetch_all(group_id)
            if topic not in retention.kept_topics and _is_expired(committed, retention.since_ms, now_ms, retention_ms)
        ]


def _same_topic_or_unknown(one: UUID, other: UUID) -> bool:
    return ZERO_ID in (one, other) or one == other


def _is_expired(committed: CommittedOffset, since_ms: int | None, now_ms: int, retention_ms: int) -> bool:
    if committed.expire_timestamp_ms >= 0:
        return now_ms >= committed.expire_timestamp_ms
    base_ms = committed.commit_timestamp_ms if since_ms is None else since_ms
    return now_ms - base_ms >= retention_ms
