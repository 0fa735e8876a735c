"""One partition of an acks log, `__acks.<topic>`, for one leadership of this broker.

- All events of one event loop iteration are written in one batch; the callers wait until the batch is committed.
- If a batch cannot be written, the in-memory state already contains its events. The log then calls `on_lost`, and the
  owner loads its state again.
- Snapshots are written between the events, each without interruption. The log below the last committed snapshot is
  history, which is kept for the topic's `retention.ms`. Normal retention must not apply to this log, because it does
  not know about snapshots.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence

from msgspec.structs import replace

from headrace.broker.coordination.state_log import COMMIT_SECONDS, read_batches, until_committed
from headrace.broker.partition import Partition
from headrace.broker.produce.commit_waits import fail_wait
from headrace.machines.queues.acks_replay import AcksReplay, MakeSubscription
from headrace.machines.queues.message_history import MessageEvent, MessageHistory
from headrace.model.errors import HeadraceError, MalformedFrame, NotLeader
from headrace.runtime.clock import Clock
from headrace.storage.segments.segment import NO_TIMESTAMP
from headrace.wire.batches.batch import BatchRecord, build_batch, parse_header, read_records, split_batches
from headrace.wire.state_records.acks_records import (
    AcksEvent,
    Reconciled,
    Settled,
    SnapshotEvent,
    decode_event,
    encode_event,
)

log = logging.getLogger(__name__)

SNAPSHOT_EVENTS = 50_000
SNAPSHOT_BYTES = 16 << 20
_BATCH_BYTES = 1 << 20
_UNPACKED_BYTES_MAX = 64 << 20
_RECORDS_PER_YIELD = 500  # takes a few milliseconds

SubscriptionEvent = tuple[str, AcksEvent]
MakeSnapshot = Callable[[int], Iterable[tuple[str, SnapshotEvent]]]


class AcksLog:
    """`snapshot` creates a snapshot with the given id; `on_lost` is called when events could not be written."""

    def __init__(
        self, partition: Partition, clock: Clock, snapshot: MakeSnapshot, on_lost: Callable[[HeadraceError], None]
    ) -> None:
        self.partition = partition
        self.is_over = False
        partition.log.enforces_retention = False
        self._clock = clock
        self._snapshot = snapshot
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._pending: list[SubscriptionEvent] = []
        self._waiting: list[asyncio.Future[None]] = []  # futures of the pending events
        self._events = self._bytes = 0  # since the last snapshot
        self._snapshot_offset = -1
        self._snapshot_end = -1
        self.reconciled_epoch = -1  # the leader epoch of the topic's partition for which the state holds

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.index}"

    def ensure_writable(self) -> None:
        """Raise unless new events can be committed, as far as this broker knows."""
        self.ensure_leader()
        self.partition.ensure_min_isr()

    def ensure_leader(self) -> None:
        if self.is_over or not self.partition.is_leader:
            raise NotLeader(f"this broker no longer leads {self}")

    # Writing

    def put(self, subscription: str, event: AcksEvent) -> None:
        if not self._pending:
            self._loop.call_soon(self._write)
        self._pending.append((subscription, event))

    def record_reconciled(self, subscriptions: Collection[str], epoch: int, now_ms: int) -> None:
        """Record that the state of all subscriptions is valid for this leader epoch of the topic's partition. Acked
        retention on all replicas relies on it for this epoch, but not for later ones."""
        if subscriptions and epoch != self.reconciled_epoch:
            self.reconciled_epoch = epoch
            for name in subscriptions:
                self.put(name, Reconciled(at=now_ms, epoch=epoch))

    def committed(self) -> asyncio.Future[None] | None:
        """Return None if all events are committed, else the future to await."""
        if not self._pending:
            end_offset = self.partition.log.end_offset
            return self.partition.committed(end_offset, self._clock.monotonic() + COMMIT_SECONDS)
        future = self._loop.create_future()
        self._waiting.append(future)
        return future

    def close(self, error: HeadraceError) -> None:
        """End the leadership; pending events are not written."""
        self.is_over = True
        self._pending = []
        waiting, self._waiting = self._waiting, []
        _resolve_all(waiting, error)

    def _write(self) -> None:
        pending, self._pending = self._pending, []
        waiting, self._waiting = self._waiting, []
        if self.is_over or not pending:
            return
        try:
            self.ensure_leader()
            end_offset = self._append(_merge_adjacent(pending))
            deadline = self._clock.monotonic() + COMMIT_SECONDS
            wait = self.partition.committed(end_offset, deadline) if waiting else None
        except HeadraceError as error:
            _resolve_all(waiting, error)
            self._on_lost(error)
            return
        if wait is None:
            _resolve_all(waiting, None)
        else:
            wait.add_done_callback(lambda wait: _resolve_all(waiting, wait.exception()))
        self._events += len(pending)
        if self._events >= SNAPSHOT_EVENTS or self._bytes >= SNAPSHOT_BYTES:
            self.write_snapshot()

    def _append(self, events: Iterable[SubscriptionEvent]) -> int:
        """Append events in batches of limited size; return the end offset."""
        now_ms = self._clock.now_ms()
        records: list[BatchRecord] = []
        size_bytes = 0
        end_offset = self.partition.log.end_offset
        for name, event in events:
            key, value = encode_event(name, event)
            if records and size_bytes + len(value) > _BATCH_BYTES:
                end_offset = self._append_batch(records, now_ms)
                records, size_bytes = [], 0
            records.append(BatchRecord(key=key, value=value, timestamp_ms=now_ms))
            size_bytes += len(value)
        return self._append_batch(records, now_ms) if records else end_offset

    def _append_batch(self, records: Sequence[BatchRecord], now_ms: int) -> int:
        batch = memoryview(build_batch(records))
        self._bytes += len(batch)
        return self.partition.append(batch, parse_header(batch), now_ms).end_offset

    # Snapshots

    def write_snapshot(self) -> None:
        offset = self.partition.log.end_offset
        try:
            parts = self._snapshot(offset)
            end_offset = self._append((name, replace(part, epoch=self.reconciled_epoch)) for name, part in parts)
        except HeadraceError as error:
            log.warning("snapshot of subscriptions failed partition=%s error=%s", self, error)
            return
        finally:
            self._events = self._bytes = 0  # after an error, retry when the next snapshot is due
        if end_offset > offset:
            self._snapshot_offset, self._snapshot_end = offset, end_offset

    async def trim(self) -> None:
        """Delete history that is older than the topic's retention. After an error, the next call tries again."""
        stored = self.partition.log
        if not 0 <= self._snapshot_end <= self.partition.high_watermark or stored.config.retention_ms < 0:
            return
        oldest_ms = self._clock.now_ms() - stored.config.retention_ms
        start_offset = stored.start_offset
        for segment, following in zip(stored.segments, stored.segments[1:], strict=False):
            newest_ms = segment.max_timestamp if segment.max_timestamp != NO_TIMESTAMP else segment.created_ms
            if following.base_offset > self._snapshot_offset or newest_ms >= oldest_ms:
                break
            start_offset = following.base_offset
        if start_offset > stored.start_offset:
            try:
                await stored.advance_start(start_offset)
            except HeadraceError as error:  # the disk is full, or the topic was deleted meanwhile
                log.warning("deleting history of subscriptions failed partition=%s error=%s", self, error)
                return
            self.partition.notify_followers()

    # Reading

    async def load(self, make: MakeSubscription) -> AcksReplay:
        """Replay the log from the last snapshot on. Return when all of it is committed; raise `NotLeader` if the
        leadership ends before."""
        partition = self.partition
        partition.ensure_readable()
        end_offset = partition.log.end_offset
        replay = AcksReplay(make, is_beginning=True)
        starts = {max(segment.base_offset, partition.log.start_offset) for segment in partition.log.segments}
        for start in sorted((start for start in starts if start < end_offset), reverse=True):
            replay = await self._replay(make, start, end_offset)
            if replay.is_complete:
                break
        if not replay.is_complete:
            log.critical(
                "no complete snapshot of subscriptions, and the log start was deleted; subscriptions may be missing "
                "partition=%s",
                self,
            )
        await until_committed(partition, end_offset)
        self.ensure_leader()
        if replay.snapshot_offset is not None:
            self._snapshot_offset, self._snapshot_end = replay.snapshot_offset, end_offset
        self._events = replay.event_count
        self.reconciled_epoch = replay.epoch
        return replay

    async def history(self, offsets: Collection[int]) -> dict[tuple[str, int], MessageEvent]:
        """Return the last events of these messages by subscription and offset, as far back as the log goes."""
        start_offset = self.partition.log.start_offset
        history = MessageHistory(offsets, is_beginning=start_offset == 0)
        async for _, name, event in self._events_from(start_offset, self.partition.high_watermark):
            history.take(name, event)
        return history.last_events

    async def _replay(self, make: MakeSubscription, start_offset: int, end_offset: int) -> AcksReplay:
        replay = AcksReplay(make, is_beginning=start_offset == 0, now_ms=self._clock.now_ms())
        async for offset, name, event in self._events_from(start_offset, end_offset):
            replay.take(offset, name, event)
        return replay

    async def _events_from(self, offset: int, end_offset: int) -> AsyncIterator[tuple[int, str, AcksEvent]]:
        count = 0
        while offset < end_offset:
            data, offset = await read_batches(self.partition, offset, end_offset)
            self.ensure_leader()
            for record in _decode_records(data):
                try:
                    yield record.offset, *decode_event(record.key, record.value)
                except MalformedFrame as error:
                    log.error("invalid acks record partition=%s offset=%d error=%s", self, record.offset, error)
                count += 1
                if count % _RECORDS_PER_YIELD == 0:
                    await asyncio.sleep(0)  # yield to other partitions
                    self.ensure_leader()


def _decode_records(data: bytes) -> Iterator[BatchRecord]:
    for batch, header in split_batches(data):
        if not header.is_control:
            yield from read_records(batch, header, _UNPACKED_BYTES_MAX)


def _merge_adjacent(events: Sequence[SubscriptionEvent]) -> Iterable[SubscriptionEvent]:
    """Merge adjacent events that settle messages of one subscription in the same way."""
    if len(events) == 1:
        return events
    joined: list[SubscriptionEvent] = []
    ranges: list[tuple[int, int]] = []  # of the last event, if it settles messages
    for name, event in events:
        if not isinstance(event, Settled):
            joined.append((name, event))
            continue
        last_name, last = joined[-1] if joined else (name, event)
        if last is event or not isinstance(last, Settled) or last_name != name or last.how != event.how:
            ranges = []
            joined.append((name, Settled(at=event.at, how=event.how, ranges=ranges)))
        for first, end in event.ranges:
            if ranges and ranges[-1][1] == first - 1:
                ranges[-1] = ranges[-1][0], end
            else:
                ranges.append((first, end))
    return joined


def _resolve_all(waiting: Iterable[asyncio.Future[None]], error: BaseException | None) -> None:
    for future in waiting:
        if error is not None:
            fail_wait(future, error)
        elif not future.done():
            future.set_result(None)
