"""One partition that this broker leads: its log, its producers, and everybody who waits for it to move.

    append -> in the log, not yet readable -> flushed -> high watermark moves -> producers answered, readers woken

Invariants: log start <= high watermark <= log end. Consumers see nothing above the high watermark, and the high
watermark is never above what is durable (or, where the topic chose `flush.messages` > 1, what is appended). Between the
check of a producer's sequence and its application nothing else happens: both run in one call without a wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Protocol

from headrace.broker.counts import TopicCounts
from headrace.machines.producers import ProducerStates
from headrace.model.errors import HeadraceError, RequestTimedOut, StorageFailure, UnknownTopicOrPartition
from headrace.model.topic_configs import TopicConfig
from headrace.storage.errors import LogQuarantined
from headrace.storage.flusher import Flusher
from headrace.storage.log import Log
from headrace.storage.reading import ColdRead, LogSlice
from headrace.wire.batch import BatchHeader, parse_header, set_log_append_time

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
    """What is derived from a partition's log: the producers. Rebuilt by replay, kept in checkpoints."""

    __slots__ = ("producers",)

    def __init__(self) -> None:
        self.producers = ProducerStates()

    def restore(self, snapshot: bytes) -> None:
        self.producers = ProducerStates.restore(snapshot) if snapshot else ProducerStates()

    def replay(self, header: BatchHeader) -> None:
        if header.producer_id >= 0:
            self.producers.apply(header, header.base_offset)

    def snapshot(self) -> bytes:
        return self.producers.snapshot()


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
        self._flusher = flusher
        self._flush_timer: asyncio.TimerHandle | None = None
        self._appended_bytes = 0  # by this process, at all
        self._appended_bytes_before = (0, 0)  # at the last two moves of the high watermark
        self._waiting: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        self._watchers: dict[Watcher, None] = {}
        log.on_flushed = self._on_flushed
        log.on_failed = self._on_failed

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
        self._appended_bytes += header.size_bytes
        if header.producer_id >= 0:
            producers.apply(header, base_offset, now_ms)
        if self.log.flush_due():
            self._flusher.mark(self.log)
        if self.config.flush_messages > 1:
            self._advance(self.log.end_offset)
            self._flush_later()
        return Appended(base_offset, self.log.end_offset, log_append_time_ms)

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

    def read(self, offset: int, size_bytes_max: int) -> LogSlice | ColdRead:
        return self.log.read(offset, size_bytes_max, self.high_watermark)

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
