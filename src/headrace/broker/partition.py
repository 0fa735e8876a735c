"""One replica of a partition that this broker holds: its log, what is derived from it, and everybody who waits for it.

    append -> in the log, not yet readable -> flushed here, and by the followers that count -> high watermark moves
           -> producers answered, readers woken

It leads, or it follows another broker's; which of the two changes with the partition's record in the registry, and
every lead has an epoch of its own. Only a leader takes batches from producers, and only in the epoch in which it leads.

Invariants: log start <= last stable offset <= high watermark <= log end. Consumers see nothing above the high
watermark, those that read committed transactions only nothing above the last stable offset. The high watermark never
goes back, and is never above what is durable here (or, where the topic chose `flush.messages` > 1, what is appended).
Between the check of a producer's sequence and its application nothing else happens: both run in one call without a
wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from headrace.broker.commit_waits import CommitWaits
from headrace.broker.counts import TopicCounts
from headrace.broker.partition_state import PartitionState
from headrace.broker.watchers import Watcher, Watchers
from headrace.machines.in_sync import InSync
from headrace.model.errors import (
    HeadraceError,
    NotEnoughReplicas,
    NotLeader,
    OffsetNotAvailable,
    StorageFailure,
    UnknownTopicOrPartition,
)
from headrace.model.partition_record import PartitionRecord
from headrace.model.topic_configs import TopicConfig
from headrace.storage.errors import LogQuarantined
from headrace.storage.flusher import Flusher
from headrace.storage.log import Log
from headrace.storage.reading import ColdRead, LogSlice
from headrace.wire.batch import BatchHeader, parse_header, set_log_append_time
from headrace.wire.control import Marker, build_marker

FLUSH_MS_NEVER = 2**63 - 1
_PLENTY = 1 << 40  # more than any reader waits for


class Appended(NamedTuple):
    """Where a batch lies; for a duplicate, where it lay already."""

    base_offset: int
    end_offset: int
    log_append_time_ms: int


class Partition:
    __slots__ = (
        "_appended_bytes",
        "_appended_bytes_before",
        "_flush_timer",
        "_flusher",
        "_here",
        "_led_epoch",
        "_told",
        "_waiting",
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
        self.topic_id = log.topic_id
        self.index = log.partition
        self.config = config
        self.state = log.state
        self.is_leader = False
        self.writes_suspended = False
        self.is_retired = False
        self.is_from_damage = log.quarantined is not None  # found at the start, before anybody was told anything
        self.leader_epoch = self._led_epoch = -1
        self.epoch_start = 0  # where the log ended when this lead began
        self.in_sync: InSync | None = None
        self.high_watermark = log.start_offset  # not known better until a leader tells, or this one leads
        self.changing = asyncio.Lock()
        """Held by whoever cuts the log: a lead begins only when nobody does."""
        self.on_marker: Callable[[int, bool], None] | None = None
        """Told of every marker at once: by which producer, and whether it commits."""
        self._told = 0  # by the leader: what is committed
        self._flusher = flusher
        self._flush_timer: asyncio.TimerHandle | None = None
        self._appended_bytes = 0  # by this process, at all
        self._appended_bytes_before = (0, 0)  # at the last two moves of the high watermark
        self._waiting = CommitWaits()  # for the high watermark
        self._here = CommitWaits()  # for this broker's own disk: acks=1
        self._watchers = Watchers()
        log.on_flushed = self._on_flushed
        log.on_failed = self._on_failed
        log.compactable_offset = lambda: self.last_stable_offset
        log.committed_offset = lambda: self.high_watermark

    # Leading and following

    def lead(self, node_id: int, record: PartitionRecord, now: float) -> None:
        """From now on this broker appends, in the record's epoch."""
        assert record.leader_epoch >= self.leader_epoch
        assert record.leader_epoch > self._led_epoch, "an epoch has one lead (I11)"
        self._resign()
        self.leader_epoch = self._led_epoch = record.leader_epoch
        self.epoch_start = self.log.end_offset
        self.in_sync = InSync(node_id, record, self.log.end_offset, now)
        self.is_leader = True
        # Also without a batch of this epoch: followers that have more than we had must be told where we part.
        self.log.epochs.assign(record.leader_epoch, self.log.end_offset)
        if self.log.flushed_offset < self.log.end_offset:
            self._flusher.mark(self.log)
        self.move()

    def follow(self, leader_epoch: int) -> None:
        """Another broker leads, or nobody does, in this epoch."""
        assert leader_epoch >= self.leader_epoch
        if leader_epoch == self.leader_epoch and not self.is_leader:
            return
        self._resign()
        self._told = 0
        self.leader_epoch = leader_epoch
        # An epoch in which we led and appended nothing is not part of our history.
        self.log.epochs.truncate_end(self.log.end_offset)

    def update(self, record: PartitionRecord) -> None:
        """The record has changed under the present lead: its in-sync set, or its replicas."""
        assert self.in_sync is not None
        assert record.leader_epoch == self.leader_epoch
        self.counts.in_sync_changed(self.in_sync.record.isr, record.isr)
        self.in_sync.settle(record)
        # One that is a replica again, and never knew that it was none, may not say again where it stands.
        self.tell_copiers()
        self.move()

    def retire(self) -> None:
        """The replica is taken away, or the topic deleted: nobody waits for it any longer."""
        self.is_retired = True
        self._resign()

    def suspend_writes(self, suspended: bool) -> None:
        """Reject writes while no follower fetches from this leader and it cannot learn whether it was replaced."""
        self.writes_suspended = suspended
        if suspended:
            self._end_waits(self._gone())

    def ensure_led(self) -> None:
        if not self.is_leader:
            raise self._gone()

    @property
    def is_settled(self) -> bool:
        """Whether this leader knows what is committed: it may have heard of that too late as a follower."""
        return self.high_watermark >= self.epoch_start

    def ensure_committed(self, offset: int) -> None:
        """Raise `OffsetNotAvailable` unless the log is committed past `offset`. A new leader learns what is committed
        from its followers: until then a message at or above the high watermark is unknown, not gone."""
        if offset >= self.high_watermark:
            raise OffsetNotAvailable(f"{self.topic}-{self.index} is not known to be committed at {offset}; ask again")

    def note_fetch(self, node_id: int, broker_epoch: int, offset: int, log_start_offset: int, now: float) -> None:
        """A follower asks for what comes at `offset`: it has everything below on its disk."""
        assert self.in_sync is not None
        if self.in_sync.note_fetch(node_id, broker_epoch, offset, log_start_offset, self.log.end_offset, now):
            self.move()

    def follow_watermark(self, high_watermark: int) -> None:
        """The leader has told what is committed; it counts here as far as it is on the disk."""
        self._told = high_watermark
        self._follow()

    def was_cut(self) -> None:
        """The log was cut, or begins anew; below what had been committed only by an operator's will."""
        self._told = 0
        self.high_watermark = max(min(self.high_watermark, self.log.end_offset), self.log.start_offset)
        self.state.producers.transactions.committed(self.high_watermark)

    # Writing

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> Appended:
        """Append one checked batch, or find that it was appended before. Readable once it is `committed`."""
        if not self.is_leader:
            raise self._gone()
        producers = self.state.producers
        if header.producer_id >= 0:
            duplicate = producers.check(header)
            if duplicate is not None:
                return Appended(duplicate.base_offset, duplicate.last_offset + 1, duplicate.timestamp_ms)
        log_append_time_ms = -1
        if self.config.message_timestamp_type == "LogAppendTime":
            log_append_time_ms = now_ms
            set_log_append_time(batch, now_ms)
            header = parse_header(batch)
        base_offset = self.log.append(batch, header, self.leader_epoch)
        if header.producer_id >= 0:
            producers.apply(header, base_offset)
        return self._appended(base_offset, header, log_append_time_ms)

    def append_unnumbered(self, batch: memoryview, header: BatchHeader) -> Appended:
        """Append a batch that the broker itself writes for a producer's transaction; it has no sequence."""
        self.ensure_led()
        self.state.producers.check_unnumbered(header)
        base_offset = self.log.append(batch, header, self.leader_epoch)
        self.state.producers.apply(header, base_offset)
        return self._appended(base_offset, header, -1)

    def append_marker(
        self, producer_id: int, producer_epoch: int, is_commit: bool, coordinator_epoch: int, now_ms: int
    ) -> Appended:
        """End the producer's transaction in this partition. Its readers know when the marker is `committed`."""
        self.ensure_led()
        batch = memoryview(build_marker(producer_id, producer_epoch, Marker(is_commit, coordinator_epoch), now_ms))
        header = parse_header(batch)
        producers = self.state.producers
        producers.check_marker(header, coordinator_epoch)
        offset = self.log.append(batch, header, self.leader_epoch)
        producers.apply_marker(header, offset, coordinator_epoch, is_commit=is_commit)
        if self.on_marker is not None:
            self.on_marker(producer_id, is_commit)
        return self._appended(offset, header, -1)

    def has_marker(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer's transaction was ended here already, in this epoch or a later one."""
        return self.state.producers.has_marker(producer_id, producer_epoch)

    def ensure_enough(self) -> None:
        """Raise unless a batch that every in-sync replica must have can be committed now."""
        if self.in_sync is not None and not self.in_sync.is_enough(self._enough(self.in_sync)):
            raise NotEnoughReplicas(
                f"{len(self.in_sync.record.isr)} in-sync replicas of {self.topic}-{self.index} are fewer than "
                f"min.insync.replicas, {self.config.min_insync_replicas}"
            )

    def committed(self, end_offset: int, deadline: float) -> asyncio.Future[None] | None:
        """None when everything below `end_offset` is committed, else the future to wait for."""
        if end_offset <= self.high_watermark:
            return None
        self._ensure_waitable()
        return self._waiting.add(end_offset, deadline)

    def durable(self, end_offset: int, deadline: float) -> asyncio.Future[None] | None:
        """The same of this broker's own disk, whatever its followers have: for acks=1."""
        if end_offset <= self._durable_offset():
            return None
        self._ensure_waitable()
        return self._here.add(end_offset, deadline)

    # Reading

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is over, and its end committed."""
        first_unstable = self.state.producers.transactions.first_unstable
        if first_unstable is None:
            return self.high_watermark
        # The log may have been trimmed in the middle of a transaction.
        return max(min(first_unstable, self.high_watermark), self.log.start_offset)

    def ensure_readable(self) -> None:
        """A damaged log says so whatever is asked of it: an offset that is merely "out of range" would make clients
        jump over what is damaged."""
        if self.log.quarantined is not None:
            raise LogQuarantined(str(self.log.quarantined))

    def read(self, offset: int, size_bytes_max: int, end_offset: int | None = None) -> LogSlice | ColdRead:
        """Batches below `end_offset`, or below the high watermark if none is given."""
        return self.log.read(offset, size_bytes_max, self.high_watermark if end_offset is None else end_offset)

    def watch(self, watcher: Watcher, *, copies: bool = False) -> None:
        """Be told when there is more that is committed, or, whoever `copies`, more at all."""
        self._watchers.add(watcher, copies=copies)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.remove(watcher)

    def tell_copiers(self) -> None:
        """What is committed, or where the log starts, has changed."""
        self._watchers.moved()

    def expire(self, now: float) -> None:
        """Producers whose time is up stop waiting; their batches stay and may still be committed."""
        self._waiting.expire(now)
        self._here.expire(now)

    # Moving

    def _gone(self) -> HeadraceError:
        if self.is_retired:
            return UnknownTopicOrPartition(f"{self.topic}-{self.index} is not here any more")
        return NotLeader(f"another broker leads {self.topic}-{self.index}, or nobody does now")

    def _ensure_waitable(self) -> None:
        if self.log.failed is not None:
            raise self.log.failed
        self.ensure_led()

    def _resign(self) -> None:
        self.is_leader = self.writes_suspended = False
        self.in_sync = None
        self._end_waits(self._gone())

    def _appended(self, base_offset: int, header: BatchHeader, log_append_time_ms: int) -> Appended:
        self._appended_bytes += header.size_bytes
        if self.log.flush_due():
            self._flusher.mark(self.log)
        if self.config.flush_messages > 1:
            self._here.reach(self.log.end_offset)
            self.move()
            self._flush_later()
        self._watchers.appended(header.size_bytes)
        return Appended(base_offset, self.log.end_offset, log_append_time_ms)

    def _flush_later(self) -> None:
        """Where the topic does not wait for the disk, its `flush.ms` bounds how long the disk may be behind."""
        if self._flush_timer is None and self.config.flush_ms < FLUSH_MS_NEVER:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(self.config.flush_ms / 1000, self._flush_now)

    def _flush_now(self) -> None:
        self._flush_timer = None
        if self.log.flushed_offset < self.log.end_offset and not self.is_retired:
            self._flusher.mark(self.log)

    def _durable_offset(self) -> int:
        """Up to where this replica counts as having the log."""
        return self.log.end_offset if self.config.flush_messages > 1 else self.log.flushed_offset

    def _enough(self, in_sync: InSync) -> int:
        return min(self.config.min_insync_replicas, len(in_sync.record.replicas))

    def move(self) -> None:
        """Let the high watermark go as far as the in-sync set allows."""
        in_sync = self.in_sync
        if in_sync is None or self.log.quarantined is not None:
            return
        offset = in_sync.high_watermark(self._durable_offset(), self.high_watermark, self._enough(in_sync))
        assert self.high_watermark <= offset <= self.log.end_offset
        if offset > self.high_watermark:
            self._advance(offset)

    def _follow(self) -> None:
        offset = min(self._told, self._durable_offset())
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.state.producers.transactions.committed(offset)

    def _advance(self, offset: int) -> None:
        self.high_watermark = offset
        self.state.producers.transactions.committed(offset)
        # At most: a flush covers what was appended since the one before it began, which was behind the end of the one
        # before that. Readers that are woken too early look again; one that is not woken would stand still.
        before, last = self._appended_bytes_before
        new_bytes = self._appended_bytes - before
        self._appended_bytes_before = last, self._appended_bytes
        assert self.in_sync is not None
        # Readers before writers: the message is for them.
        self._watchers.committed(new_bytes if len(self.in_sync.record.replicas) == 1 else _PLENTY)
        self._waiting.reach(offset)

    def _on_flushed(self, log: Log) -> None:
        self._here.reach(log.flushed_offset)
        if self.is_leader:
            self.move()
        else:
            self._follow()

    def _on_failed(self, log: Log) -> None:
        self._end_waits(log.failed or StorageFailure(f"the log of {self.topic}-{self.index} is out of service"))

    def _end_waits(self, error: HeadraceError) -> None:
        self._waiting.end(error)
        self._here.end(error)
        self._watchers.gone()
