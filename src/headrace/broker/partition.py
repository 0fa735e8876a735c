"""One partition that this broker leads: its log, its producers, and everybody who waits for it to move.

    append -> in the log, not yet readable -> flushed -> high watermark moves -> producers answered, readers woken

Invariants: log start <= last stable offset <= high watermark <= log end. Consumers see nothing above the high
watermark, those that read committed transactions only nothing above the last stable offset. The high watermark is never
above what is durable (or, where the topic chose `flush.messages` > 1, what is appended). Between the check of a
producer's sequence and its application nothing else happens: both run in one call without a wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from headrace.broker.counts import TopicCounts
from headrace.machines.partition_transactions import AbortedTransaction
from headrace.machines.producers import ProducerStates
from headrace.model.errors import HeadraceError, RequestTimedOut, StorageFailure, UnknownTopicOrPartition
from headrace.model.topic_configs import TopicConfig
from headrace.storage.errors import LogQuarantined
from headrace.storage.flusher import Flusher
from headrace.storage.log import Log
from headrace.storage.reading import ColdRead, LogSlice
from headrace.storage.state import Replayed
from headrace.wire.batch import BatchHeader, parse_header, set_log_append_time
from headrace.wire.control import Marker, build_marker

FLUSH_MS_NEVER = 2**63 - 1


class Appended(NamedTuple):
    """Where a batch lies; for a duplicate, where it lay already."""

    base_offset: int
    end_offset: int
    log_append_time_ms: int


class Watcher(Protocol):
    """Somebody who wants to know that there is more to read, or that the partition is gone."""

    def on_moved(self, new_bytes: int) -> None: ...


class PartitionState:
    """What is derived from a partition's log: producers and transactions. Rebuilt by replay, kept in checkpoints."""

    __slots__ = ("producers",)

    def __init__(self) -> None:
        self.producers = ProducerStates()

    def restore(self, snapshot: bytes) -> None:
        self.producers = ProducerStates.restore(snapshot) if snapshot else ProducerStates()

    def replay(self, batch: Replayed) -> None:
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
        """The transactions with anything between these offsets that came to nothing."""
        return self.producers.transactions.aborted(start_offset, end_offset)

    def forget_aborted(self, markers: Sequence[int]) -> None:
        self.producers.transactions.forget(markers)

    def expire(self, start_offset: int, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that have been silent for long, and what was aborted below the log's start."""
        self.producers.expire(now_ms, expiration_ms)
        self.producers.transactions.trim(start_offset)


class Partition:
    __slots__ = (
        "_appended_bytes",
        "_appended_bytes_before",
        "_flush_timer",
        "_flusher",
        "_waiting",
        "_watchers",
        "config",
        "counts",
        "high_watermark",
        "index",
        "is_retired",
        "leader_epoch",
        "log",
        "on_marker",
        "state",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        log: Log,
        flusher: Flusher,
        topic: str,
        config: TopicConfig,
        leader_epoch: int,
        counts: TopicCounts,
    ) -> None:
        assert isinstance(log.state, PartitionState)
        self.log = log
        self.counts = counts
        self.topic = topic
        self.topic_id = log.topic_id
        self.index = log.partition
        self.config = config
        self.leader_epoch = leader_epoch
        self.state = log.state
        self.is_retired = False
        self.high_watermark = log.end_offset
        self.state.producers.transactions.committed(self.high_watermark)
        self.on_marker: Callable[[int, bool], None] | None = None
        """Told of every marker at once: by which producer, and whether it commits."""
        self._flusher = flusher
        self._flush_timer: asyncio.TimerHandle | None = None
        self._appended_bytes = 0  # by this process, at all
        self._appended_bytes_before = (0, 0)  # at the last two moves of the high watermark
        self._waiting: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        self._watchers: dict[Watcher, None] = {}
        log.on_flushed = self._on_flushed
        log.on_failed = self._on_failed
        log.compactable_offset = lambda: self.last_stable_offset

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> Appended:
        """Append one checked batch, or find that it was appended before. Readable once it is `committed`."""
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
            producers.apply(header, base_offset, now_ms)
        return self._appended(base_offset, header, log_append_time_ms)

    def append_unnumbered(self, batch: memoryview, header: BatchHeader, now_ms: int) -> Appended:
        """Append a batch that the broker itself writes for a producer's transaction; it has no sequence."""
        self.state.producers.check_unnumbered(header)
        base_offset = self.log.append(batch, header, self.leader_epoch)
        self.state.producers.apply(header, base_offset, now_ms)
        return self._appended(base_offset, header, -1)

    def append_marker(
        self, producer_id: int, producer_epoch: int, is_commit: bool, coordinator_epoch: int, now_ms: int
    ) -> Appended:
        """End the producer's transaction in this partition. Its readers know when the marker is `committed`."""
        batch = memoryview(build_marker(producer_id, producer_epoch, Marker(is_commit, coordinator_epoch), now_ms))
        header = parse_header(batch)
        producers = self.state.producers
        producers.check_marker(header, coordinator_epoch)
        offset = self.log.append(batch, header, self.leader_epoch)
        producers.apply_marker(header, offset, coordinator_epoch, is_commit=is_commit, now_ms=now_ms)
        if self.on_marker is not None:
            self.on_marker(producer_id, is_commit)
        return self._appended(offset, header, -1)

    def has_marker(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer's transaction was ended here already, in this epoch or a later one."""
        return self.state.producers.has_marker(producer_id, producer_epoch)

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is over, and its end committed."""
        first_unstable = self.state.producers.transactions.first_unstable
        if first_unstable is None:
            return self.high_watermark
        # The log may have been trimmed in the middle of a transaction.
        return max(min(first_unstable, self.high_watermark), self.log.start_offset)

    def committed(self, end_offset: int, deadline: float) -> asyncio.Future[None] | None:
        """None when everything below `end_offset` is committed, else the future to wait for."""
        if end_offset <= self.high_watermark:
            return None
        if self.log.failed is not None:
            raise self.log.failed
        if self.is_retired:
            raise self._gone()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((end_offset, deadline, future))
        return future

    def ensure_readable(self) -> None:
        """A damaged log says so whatever is asked of it: an offset that is merely "out of range" would make clients
        jump over what is damaged."""
        if self.log.quarantined is not None:
            raise LogQuarantined(str(self.log.quarantined))

    def read(self, offset: int, size_bytes_max: int, end_offset: int | None = None) -> LogSlice | ColdRead:
        """Batches below `end_offset`, or below the high watermark if none is given."""
        return self.log.read(offset, size_bytes_max, self.high_watermark if end_offset is None else end_offset)

    def watch(self, watcher: Watcher) -> None:
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def expire(self, now: float) -> None:
        """Producers whose time is up stop waiting; their batches stay and may still be committed."""
        waiting = self._waiting
        if waiting and any(deadline <= now for _, deadline, _ in waiting):
            kept = deque[tuple[int, float, asyncio.Future[None]]]()
            for entry in waiting:
                if entry[1] > now:
                    kept.append(entry)
                elif not entry[2].done():
                    entry[2].set_exception(RequestTimedOut("the batch was not committed within the request's timeout"))
            self._waiting = kept

    def retire(self) -> None:
        """The topic is deleted: nobody waits for it any longer."""
        self.is_retired = True
        self._end_waits(self._gone())

    def _gone(self) -> UnknownTopicOrPartition:
        return UnknownTopicOrPartition(f"topic {self.topic} was deleted")

    def _appended(self, base_offset: int, header: BatchHeader, log_append_time_ms: int) -> Appended:
        self._appended_bytes += header.size_bytes
        if self.log.flush_due():
            self._flusher.mark(self.log)
        if self.config.flush_messages > 1:
            self._advance(self.log.end_offset)
            self._flush_later()
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

    def _advance(self, offset: int) -> None:
        assert self.log.start_offset <= self.high_watermark <= offset <= self.log.end_offset
        if offset == self.high_watermark:
            return
        self.high_watermark = offset
        self.state.producers.transactions.committed(offset)
        # At most: a flush covers what was appended since the one before it began, which was behind the end of the one
        # before that. Readers that are woken too early look again; one that is not woken would stand still.
        before, last = self._appended_bytes_before
        new_bytes = self._appended_bytes - before
        self._appended_bytes_before = last, self._appended_bytes
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            future = waiting.popleft()[2]
            if not future.done():
                future.set_result(None)
        for watcher in tuple(self._watchers):
            watcher.on_moved(new_bytes)

    def _on_flushed(self, log: Log) -> None:
        if log.flushed_offset > self.high_watermark:
            self._advance(log.flushed_offset)

    def _on_failed(self, log: Log) -> None:
        self._end_waits(log.failed or StorageFailure(f"the log of {self.topic}-{self.index} is out of service"))

    def _end_waits(self, error: HeadraceError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(error)
        for watcher in tuple(self._watchers):
            watcher.on_moved(0)
