"""A local replica of a partition: its log, the state derived from the log, and the requests that wait for it.

    append -> in the log, not yet readable -> flushed here and by the in-sync followers -> high watermark advances
           -> produce responses are sent, waiting fetches are woken

The replica is either the leader or a follower. The partition record in the registry determines which, and every
leadership has its own leader epoch. Only the leader accepts batches from producers, and only in its epoch.

Invariants:

- log start <= last stable offset <= high watermark <= log end.
- Consumers see no records at or above the high watermark, and read_committed consumers none at or above the last stable
  offset.
- The high watermark never decreases, and never exceeds the durable log end of this replica (with `flush.messages` > 1
  the log end).
- The check of a producer's sequence number and its update run without an await in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.broker.fetch.partition_watchers import PartitionWatcher, PartitionWatchers
from headrace.broker.produce.commit_waits import CommitWaits
from headrace.machines.produce.producer_states import ProducerStates
from headrace.machines.replication.in_sync import IsrState
from headrace.machines.transactions.partition_transactions import AbortedTransaction
from headrace.model.errors import (
    HeadraceError,
    NotEnoughReplicas,
    NotLeader,
    OffsetNotAvailable,
    StorageFailure,
    UnknownTopicOrPartition,
)
from headrace.model.registry_records import Nodes, PartitionRecord
from headrace.model.topic_configs import TopicConfig
from headrace.storage.errors import LogQuarantined
from headrace.storage.log.flusher import Flusher
from headrace.storage.log.log import Log
from headrace.storage.log.reading import ColdRead, LogSlice
from headrace.storage.segments.scan import ReplayedBatch
from headrace.wire.batches.batch import BatchHeader, Marker, build_marker, parse_header, set_log_append_time

FLUSH_MS_NEVER = 2**63 - 1
_NO_BYTE_LIMIT = 1 << 40  # more than min_bytes of any fetch


class AppendResult(NamedTuple):
    """The position of an appended batch; for a duplicate, that of the original."""

    base_offset: int
    end_offset: int
    log_append_time_ms: int


@dataclass(slots=True, eq=False)
class TopicCounts:
    """The counters of a topic, which its partitions share: plain numbers on the hot path, which are converted to
    metrics on a scrape."""

    bytes_in: int = 0
    bytes_out: int = 0
    records_in: int = 0
    duplicates: int = 0  # messages dropped because of their dedup id
    produces: int = 0
    fetches: int = 0
    failed_produces: int = 0
    failed_fetches: int = 0
    in_sync_lost: int = 0  # out-of-sync replicas of partitions that this broker leads
    in_sync_gained: int = 0

    def produced(self, size_bytes: int, record_count: int) -> None:
        self.produces += 1
        self.bytes_in += size_bytes
        self.records_in += record_count

    def in_sync_changed(self, before: Nodes, after: Nodes) -> None:
        self.in_sync_lost += len(set(before).difference(after))
        self.in_sync_gained += len(set(after).difference(before))

    def fetched(self, size_bytes: int) -> None:
        self.fetches += 1
        self.bytes_out += size_bytes


class Partition:
    __slots__ = (
        "_appended_bytes",
        "_appended_bytes_before",
        "_commit_waits",
        "_flush_timer",
        "_flusher",
        "_leader_high_watermark",
        "_led_epoch",
        "_local_waits",
        "_watchers",
        "changing",
        "config",
        "counts",
        "epoch_start",
        "high_watermark",
        "in_sync",
        "index",
        "is_from_damage",
        "is_leader",
        "is_retired",
        "leader_epoch",
        "led_since",
        "log",
        "on_marker",
        "state",
        "topic",
        "topic_id",
        "writes_suspended",
    )

    def __init__(self, log: Log, flusher: Flusher, topic: str, config: TopicConfig, counts: TopicCounts) -> None:
        assert isinstance(log.state, PartitionState)
        self.log = log
        self.counts = counts
        self.topic = topic
        self.topic_id, self.index = log.key
        self.config = config
        self.state = log.state
        self.is_leader = False
        self.writes_suspended = False
        self.is_retired = False
        self.is_from_damage = log.quarantined is not None  # damaged at startup, before this broker reported any offset
        self.leader_epoch = self._led_epoch = -1
        self.epoch_start = 0  # log end offset at the start of this leadership
        self.led_since = 0.0  # the monotonic time of that
        self.in_sync: IsrState | None = None
        self.high_watermark = log.start_offset  # a lower bound until the leader reports it, or this replica leads
        self.changing = asyncio.Lock()
        """Held while the log is truncated or reset, so that a leadership cannot begin meanwhile."""
        self.on_marker: Callable[[int, bool], None] | None = None
        """Called on every transaction marker with the producer id and whether it commits."""
        self._leader_high_watermark = 0  # high watermark as reported by the leader
        self._flusher = flusher
        self._flush_timer: asyncio.TimerHandle | None = None
        self._appended_bytes = 0  # total since the start of the process
        self._appended_bytes_before = (0, 0)  # at the last two advances of the high watermark
        self._commit_waits = CommitWaits()  # waits for the high watermark
        self._local_waits = CommitWaits()  # waits for the local disk: acks=1
        self._watchers = PartitionWatchers()
        log.on_flushed = self._on_flushed
        log.on_failed = self._on_failed
        log.compactable_offset = lambda: self.last_stable_offset
        log.committed_offset = lambda: self.high_watermark

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    # Leader and follower roles

    def lead(self, node_id: int, record: PartitionRecord, now: float) -> None:
        """Become the leader in the epoch of the record."""
        assert record.leader_epoch >= self.leader_epoch
        assert record.leader_epoch > self._led_epoch, "an epoch has one leadership (I11)"
        self._resign()
        self.leader_epoch = self._led_epoch = record.leader_epoch
        self.epoch_start = self.log.end_offset
        self.led_since = now
        self.in_sync = IsrState(node_id, record, self.log.end_offset, now)
        self.is_leader = True
        # Assign the epoch even before its first batch: followers with a longer log need it to find where to truncate.
        self.log.epochs.assign(record.leader_epoch, self.log.end_offset)
        if self.log.flushed_offset < self.log.end_offset:
            self._flusher.mark(self.log)
        self.move()

    def follow(self, leader_epoch: int) -> None:
        """Become a follower in this epoch, in which another broker or none is the leader."""
        assert leader_epoch >= self.leader_epoch
        if leader_epoch == self.leader_epoch and not self.is_leader:
            return
        self._resign()
        self._leader_high_watermark = 0
        self.leader_epoch = leader_epoch
        # Remove an epoch in which this replica led but appended nothing: it is not part of the log's history.
        self.log.epochs.truncate_end(self.log.end_offset)

    def update(self, record: PartitionRecord) -> None:
        """Apply a changed record of the current leadership: other in-sync replicas or other replicas."""
        assert self.in_sync is not None
        assert record.leader_epoch == self.leader_epoch
        self.counts.in_sync_changed(self.in_sync.record.isr, record.isr)
        self.in_sync.update_record(record)
        # Wake the fetches of followers. A follower that was removed and added again without noticing would otherwise
        # not report its position.
        self.notify_followers()
        self.move()

    def retire(self) -> None:
        """End all waits, because the replica is removed or the topic is deleted."""
        self.is_retired = True
        self._resign()

    def suspend_writes(self, suspended: bool) -> None:
        """Reject writes while no follower fetches from this leader and it cannot learn whether it was replaced."""
        self.writes_suspended = suspended
        if suspended:
            self._end_waits(self._gone_error())

    def ensure_leader(self) -> None:
        if not self.is_leader:
            raise self._gone_error()

    @property
    def knows_high_watermark(self) -> bool:
        """Whether this leader knows the high watermark: as a follower it may have had an older one."""
        return self.high_watermark >= self.epoch_start

    def ensure_committed(self, offset: int) -> None:
        """Raise `OffsetNotAvailable` unless the log is committed past `offset`. A new leader learns the high watermark
        from its followers: until then a message at or above it may exist, and must not be reported as missing."""
        if offset >= self.high_watermark:
            raise OffsetNotAvailable(f"{self} is not known to be committed up to offset {offset}; retry")

    def record_follower_fetch(
        self, node_id: int, broker_epoch: int, offset: int, log_start_offset: int, now: float
    ) -> None:
        """Process a fetch of a follower from `offset`, which has all records below that offset on its disk."""
        assert self.in_sync is not None
        if self.in_sync.record_follower_fetch(
            node_id, broker_epoch, offset, log_start_offset, self.log.end_offset, now
        ):
            self.move()

    def follow_high_watermark(self, high_watermark: int) -> None:
        """Apply the leader's high watermark, limited to the durable log end of this replica."""
        self._leader_high_watermark = high_watermark
        self._follow()

    def on_truncated(self) -> None:
        """Adapt to a truncated or reset log. Only after an unclean election can it end below the high watermark."""
        self._leader_high_watermark = 0
        self.high_watermark = max(min(self.high_watermark, self.log.end_offset), self.log.start_offset)
        self.state.producers.transactions.committed(self.high_watermark)

    # Writing

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> AppendResult:
        """Append a validated batch, or detect that it is a duplicate. It is readable once it is `committed`."""
        if not self.is_leader:
            raise self._gone_error()
        producers = self.state.producers
        if header.producer_id >= 0:
            duplicate = producers.check(header)
            if duplicate is not None:
                return AppendResult(duplicate.base_offset, duplicate.last_offset + 1, duplicate.timestamp_ms)
        log_append_time_ms = -1
        if self.config.message_timestamp_type == "LogAppendTime":
            log_append_time_ms = now_ms
            set_log_append_time(batch, now_ms)
            header = parse_header(batch)
        base_offset = self.log.append(batch, header, self.leader_epoch)
        if header.producer_id >= 0:
            producers.apply(header, base_offset)
        return self._appended(base_offset, header, log_append_time_ms)

    def append_unnumbered(self, batch: memoryview, header: BatchHeader) -> AppendResult:
        """Append a batch without a sequence number, which the broker itself writes in a producer's transaction."""
        self.ensure_leader()
        self.state.producers.check_unnumbered(header)
        base_offset = self.log.append(batch, header, self.leader_epoch)
        self.state.producers.apply(header, base_offset)
        return self._appended(base_offset, header, -1)

    def append_marker(
        self, producer_id: int, producer_epoch: int, is_commit: bool, coordinator_epoch: int, now_ms: int
    ) -> AppendResult:
        """End the producer's transaction in this partition. It is visible to consumers once the marker is
        `committed`."""
        self.ensure_leader()
        batch = memoryview(build_marker(producer_id, producer_epoch, Marker(is_commit, coordinator_epoch), now_ms))
        header = parse_header(batch)
        producers = self.state.producers
        producers.check_marker(header, coordinator_epoch)
        offset = self.log.append(batch, header, self.leader_epoch)
        producers.apply_marker(header, offset, coordinator_epoch, is_commit=is_commit)
        if self.on_marker is not None:
            self.on_marker(producer_id, is_commit)
        return self._appended(offset, header, -1)

    def ensure_min_isr(self) -> None:
        """Raise unless there are enough in-sync replicas to commit a batch with acks=all."""
        if self.in_sync is not None and not self.in_sync.has_min_isr(self.config.min_insync_replicas):
            raise NotEnoughReplicas(
                f"{self} has {len(self.in_sync.record.isr)} in-sync replicas, fewer than "
                f"min.insync.replicas={self.config.min_insync_replicas}"
            )

    def committed(self, end_offset: int, deadline: float) -> asyncio.Future[None] | None:
        """Return None if everything below `end_offset` is committed, else a future to await."""
        if end_offset <= self.high_watermark:
            return None
        self._ensure_waitable()
        return self._commit_waits.add(end_offset, deadline)

    def durable(self, end_offset: int, deadline: float) -> asyncio.Future[None] | None:
        """Like `committed`, but for the local disk only: for acks=1."""
        if end_offset <= self._durable_offset():
            return None
        self._ensure_waitable()
        return self._local_waits.add(end_offset, deadline)

    # Reading

    @property
    def last_stable_offset(self) -> int:
        """All transactions below this offset have ended, and their markers are committed."""
        first_unstable = self.state.producers.transactions.first_unstable
        if first_unstable is None:
            return self.high_watermark
        # The log may have been trimmed within a transaction.
        return max(min(first_unstable, self.high_watermark), self.log.start_offset)

    def ensure_readable(self) -> None:
        """Raise if the log is damaged, whatever is requested: with OFFSET_OUT_OF_RANGE clients would skip the damaged
        records."""
        if self.log.quarantined is not None:
            raise LogQuarantined(str(self.log.quarantined))

    def read(self, offset: int, size_bytes_max: int, end_offset: int | None = None) -> LogSlice | ColdRead:
        """Read batches below `end_offset`, by default below the high watermark."""
        return self.log.read(offset, size_bytes_max, self.high_watermark if end_offset is None else end_offset)

    def watch(self, watcher: PartitionWatcher, *, is_follower: bool = False) -> None:
        """Notify the watcher of committed records, or, if it `copies` (is a follower), of all appended records."""
        self._watchers.add(watcher, is_follower=is_follower)

    def unwatch(self, watcher: PartitionWatcher) -> None:
        self._watchers.remove(watcher)

    def notify_followers(self) -> None:
        """Notify followers that the high watermark or the log start offset has changed."""
        self._watchers.moved()

    def expire(self, now: float) -> None:
        """Time out waiting produce requests; their batches stay in the log and may still be committed."""
        self._commit_waits.expire(now)
        self._local_waits.expire(now)

    # High watermark

    def _gone_error(self) -> HeadraceError:
        if self.is_retired:
            return UnknownTopicOrPartition(f"this broker no longer has a replica of {self}")
        return NotLeader(f"this broker is not the leader of {self}; refresh the metadata")

    def _ensure_waitable(self) -> None:
        if self.log.failed is not None:
            raise self.log.failed
        self.ensure_leader()

    def _resign(self) -> None:
        self.is_leader = self.writes_suspended = False
        self.in_sync = None
        self._end_waits(self._gone_error())

    def _appended(self, base_offset: int, header: BatchHeader, log_append_time_ms: int) -> AppendResult:
        self._appended_bytes += header.size_bytes
        if self.log.flush_due():
            self._flusher.mark(self.log)
        if self.config.flush_messages > 1:
            self._local_waits.reach(self.log.end_offset)
            self.move()
            self._flush_later()
        self._watchers.appended(header.size_bytes)
        return AppendResult(base_offset, self.log.end_offset, log_append_time_ms)

    def _flush_later(self) -> None:
        """Schedule a flush after `flush.ms` for a topic that acknowledges records before they are flushed."""
        if self._flush_timer is None and self.config.flush_ms < FLUSH_MS_NEVER:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(self.config.flush_ms / 1000, self._flush_now)

    def _flush_now(self) -> None:
        self._flush_timer = None
        if self.log.flushed_offset < self.log.end_offset and not self.is_retired:
            self._flusher.mark(self.log)

    def _durable_offset(self) -> int:
        """The log end that counts as durable on this replica."""
        return self.log.end_offset if self.config.flush_messages > 1 else self.log.flushed_offset

    def move(self) -> None:
        """Advance the high watermark as far as the in-sync replicas allow."""
        in_sync = self.in_sync
        if in_sync is None or self.log.quarantined is not None:
            return
        offset = in_sync.high_watermark(self._durable_offset(), self.high_watermark, self.config.min_insync_replicas)
        assert self.high_watermark <= offset <= self.log.end_offset
        if offset > self.high_watermark:
            self._advance(offset)

    def _follow(self) -> None:
        offset = min(self._leader_high_watermark, self._durable_offset())
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.state.producers.transactions.committed(offset)

    def _advance(self, offset: int) -> None:
        self.high_watermark = offset
        self.state.producers.transactions.committed(offset)
        # This is an upper bound: a flush covers at most what was appended since the end of the last flush but one. A
        # fetch that is woken too early checks again, but a fetch that is not woken would hang.
        before, last = self._appended_bytes_before
        new_bytes = self._appended_bytes - before
        self._appended_bytes_before = last, self._appended_bytes
        assert self.in_sync is not None
        # Fetches before produce responses: consumers should get the message first.
        self._watchers.committed(new_bytes if len(self.in_sync.record.replicas) == 1 else _NO_BYTE_LIMIT)
        self._commit_waits.reach(offset)

    def _on_flushed(self, log: Log) -> None:
        self._local_waits.reach(log.flushed_offset)
        if self.is_leader:
            self.move()
        else:
            self._follow()

    def _on_failed(self, log: Log) -> None:
        self._end_waits(log.failed or StorageFailure(f"the log of {self} is out of service"))

    def _end_waits(self, error: HeadraceError) -> None:
        self._commit_waits.end(error)
        self._local_waits.end(error)
        self._watchers.gone()


class PartitionState:
    """Producers and transactions, as derived from a partition's log. Rebuilt by replay, stored in checkpoints."""

    __slots__ = ("producers",)

    def __init__(self) -> None:
        self.producers = ProducerStates()

    def restore(self, snapshot: bytes) -> None:
        self.producers = ProducerStates.restore(snapshot) if snapshot else ProducerStates()

    def replay(self, batch: ReplayedBatch) -> None:
        header, marker = batch
        if header.producer_id < 0:
            return
        if marker is not None:
            self.producers.apply_marker(
                header, header.base_offset, marker.coordinator_epoch, is_commit=marker.is_commit
            )
        elif not header.is_control:
            self.producers.apply(header, header.base_offset)

    def snapshot(self) -> bytes:
        return self.producers.snapshot()

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that have records between these offsets."""
        return self.producers.transactions.aborted(start_offset, end_offset)

    def forget_aborted(self, markers: Sequence[int]) -> None:
        self.producers.transactions.forget(markers)

    def producer_ids(self) -> frozenset[int]:
        return self.producers.ids()

    def expire(self, start_offset: int, now: float, expiration_ms: int) -> None:
        """Forget producers that were idle for longer than this, and aborted transactions below the log start."""
        self.producers.expire(now, expiration_ms)
        self.producers.transactions.trim(start_offset)


def is_aborted(header: BatchHeader, aborted: Sequence[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        one.producer_id == header.producer_id and one.first_offset <= header.base_offset < one.last_offset
        for one in aborted
    )
