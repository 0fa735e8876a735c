"""Release the delayed messages of one partition in time, while this broker leads its delayed log.

The broker that leads both `__delayed.T`-i and T-i releases messages. A release takes three steps:

1. It is announced slightly ahead of time: an event with the messages, and the producer id and sequence of their batch,
   is committed to the delayed log.
2. When it is due, the batch is appended to T, where it commits independently.
3. The completion is recorded, with the next announcement or a second later.

No message is lost or duplicated between the first two steps. If one of the leaderships ends there, the next leader of
both finds the release open, checks whether T has the batch, and appends it if not. The log of T is always
authoritative.

Cancellations and new due times apply as soon as their event is appended; the requests are answered when it is
committed. An announced message can no longer be cancelled.

A single task does everything that awaits. Requests change the index in between, without an await.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from math import inf

from headrace.broker.coordination.shards import Shard
from headrace.broker.delays.delay_target import (
    DelayTarget,
    EncodedBatch,
    build_release,
    compress_for_topic,
    estimate_record_bytes,
)
from headrace.broker.delays.delayed_log import DelayedLog
from headrace.broker.partition import Partition
from headrace.machines.delays.delay_index import DelayIndex, DueMessage, OpenRelease, replay
from headrace.machines.delays.due_time import parse_repeat_header
from headrace.machines.produce.producer_states import SEQUENCE_MASK
from headrace.model.errors import CoordinatorLoading, HeadraceError, InvalidRecordState, OutOfOrderSequence
from headrace.model.histogram import Histogram
from headrace.model.ids import MessageId
from headrace.model.message_headers import REPEAT, header_value
from headrace.runtime.clock import Clock
from headrace.wire.batches.batch import BatchRecord
from headrace.wire.state_records.delayed_records import (
    Cancelled,
    DelayedEvent,
    Dropped,
    Released,
    Releasing,
    Rescheduled,
)

log = logging.getLogger(__name__)

TICK_MS = 10  # messages that are due within one tick are released together at its end
_AHEAD_MS_MAX = 50
_READ_BYTES = 256 << 10
_RELEASED_MAX = 1000  # messages per batch
_RELEASED_BYTES_MAX = 1 << 20
_POLL_SECONDS = 10.0  # maximum wait, because the wall clock may have been set
_HOUSEKEEPING_SECONDS = 1.0
_TRIM_SECONDS = 60.0
_TRIM_RECORDS = 10_000
_COMMIT_SECONDS = 5.0
_RETRY_SECONDS_MAX = 5.0
_LOAD_SECONDS_MAX = 300.0  # maximum retry delay of a load: read errors rarely go away soon
_MESSAGES_PER_READ = 16
_OPEN_MAX = 16  # releases that are not committed in T yet


class DelayCounts:
    """Counters of the delayed messages of a topic: plain numbers, converted to metrics on a scrape."""

    def __init__(self) -> None:
        self.released = 0
        self.late_seconds = Histogram()

    def record_release(self, now_ms: int, due_ms: int, count: int) -> None:
        """Count the messages of a released batch; `due_ms` is the due time of the first one."""
        self.released += count
        self.late_seconds.observe(max(now_ms - due_ms, 0) / 1000, count)


class DelayShard(Shard):
    def __init__(
        self,
        partition: Partition,
        find_target: Callable[[], Partition | None],
        next_producer_id: Callable[[], Awaitable[int]],
        ensure_space: Callable[[], None],
        counts: DelayCounts,
        clock: Clock,
    ) -> None:
        super().__init__(partition)
        self.is_loaded = False  # an empty log has its task as well
        self.delays = DelayIndex(partition.log.start_offset, clock.now_ms())
        self._log = DelayedLog(partition, clock)
        self._find_target = find_target
        self._next_producer_id = next_producer_id
        self._ensure_space = ensure_space
        self._counts = counts
        self._clock = clock
        self._target: DelayTarget | None = None  # the partition to which all open releases have been appended
        self._producer: int | None = None
        self._sequence = 0
        self._events_end = partition.log.end_offset  # later events were appended by this shard
        self._kept = self._trimmed = clock.monotonic()
        self._ahead_ms = 1.0  # recent time until an announcement is committed
        self._wake = asyncio.Event()

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.index}"

    # Requests

    def ensure_serving(self) -> None:
        self._log.ensure_leader()
        if not self.is_loaded:
            raise CoordinatorLoading(f"{self} is still being loaded; retry")

    async def page(self, after_ms: int, after_offset: int, count_max: int) -> list[tuple[DueMessage, BatchRecord]]:
        """Return up to `count_max` messages after this one, ordered by due time; fewer if they are large."""
        self.ensure_serving()
        dues = self.delays.page(DueMessage(after_ms, after_offset), count_max)
        found: list[tuple[DueMessage, BatchRecord]] = []
        size_bytes = 0
        for at in range(0, len(dues), _MESSAGES_PER_READ):
            together = dues[at : at + _MESSAGES_PER_READ]
            messages = await self._log.messages([due.offset for due in together])
            # A message that was released during the read may be gone.
            found += [(due, messages[due.offset]) for due in together if due.offset in messages]
            size_bytes += sum(map(estimate_record_bytes, messages.values()))
            if size_bytes > _RELEASED_BYTES_MAX:
                break
        return found

    async def cancel(self, offset: int) -> None:
        self._ensure_pending(offset)
        await self._log.committed(self._append(Cancelled(self._clock.now_ms(), [offset])), _COMMIT_SECONDS)

    async def reschedule(self, offset: int, due_ms: int) -> None:
        self._ensure_pending(offset)
        end_offset = self._append(Rescheduled(self._clock.now_ms(), offset, due_ms))
        self.wake()
        await self._log.committed(end_offset, _COMMIT_SECONDS)

    def _ensure_pending(self, offset: int) -> None:
        self.ensure_serving()
        if self.delays.replayed_to <= offset < self.partition.high_watermark:
            raise CoordinatorLoading(
                f"{self} is loaded only up to {self.delays.replayed_to}, not yet to {offset}; retry"
            )
        if offset not in self.delays:
            name = MessageId(self.partition.topic, self.partition.index, offset)
            raise InvalidRecordState(f"{name} is not waiting: it was released or cancelled, or does not exist")

    def _append(self, event: DelayedEvent) -> int:
        """Append and apply in one step; return the end offset to wait for."""
        offset, end_offset = self._log.append(event)
        self.delays.apply(event, offset)
        return end_offset

    # The task

    def wake(self) -> None:
        """Wake the task after a change: new messages, or a leadership of T."""
        self._wake.set()

    def on_data_available(self, _new_bytes: int) -> None:
        self.wake()

    def on_high_watermark(self) -> None:
        raise AssertionError("the read is limited to committed records and is not a replica fetch")

    async def load(self) -> None:
        """Load the delayed messages, then release them until the leadership ends; retry after errors."""
        retry_seconds = 0.1
        self.partition.watch(self)
        try:
            while self._log.is_leader_here:
                self._wake.clear()
                try:
                    if not self.is_loaded:
                        await self._load_index()
                    is_idle = await self._work()
                    retry_seconds = 0.1
                except HeadraceError as error:
                    self._target = None  # an announced release may not have been appended
                    if self._log.is_leader_here:
                        log.warning(
                            "releasing delayed messages failed, will retry partition=%s retry_seconds=%.1f error=%s",
                            self,
                            retry_seconds,
                            error.message,
                        )
                        await asyncio.sleep(retry_seconds)
                        retry_max = _RETRY_SECONDS_MAX if self.is_loaded else _LOAD_SECONDS_MAX
                        retry_seconds = min(retry_seconds * 2, retry_max)
                    continue
                if is_idle:
                    await self._pause()
        finally:
            self.partition.unwatch(self)

    async def _load_index(self) -> None:
        """Rebuild the state from the log, and wait until all of it is committed."""
        started = self._clock.monotonic()
        self.delays = DelayIndex(self.partition.log.start_offset, self._clock.now_ms())
        self.partition.ensure_readable()
        while self.delays.replayed_to < self._events_end:
            await self._take_in(self._events_end)
        await self._log.committed(self._events_end)
        self.is_loaded = True
        if self.delays.replayed_to:
            seconds = self._clock.monotonic() - started
            log.info("delayed messages loaded partition=%s messages=%d seconds=%.1f", self, len(self.delays), seconds)

    async def _take_in(self, end_offset: int) -> None:
        data, next_offset = await self._log.read(self.delays.replayed_to, _READ_BYTES, end_offset)
        replay(self.delays, data, self._events_end)
        self.delays.replayed_to = max(self.delays.replayed_to, next_offset)
        await asyncio.sleep(0)  # the read may not have suspended: yield to other tasks
        self._log.ensure_leader()

    async def _work(self) -> bool:
        """Do one round of work; return whether there is nothing more to do now."""
        is_idle = True
        if self.delays.replayed_to < self.partition.high_watermark:
            await self._take_in(self.partition.high_watermark)
            is_idle = self.delays.replayed_to >= self.partition.high_watermark
        target = await self._ready_target()
        if target is not None and await self._release(target):
            is_idle = False
        await self._run_housekeeping(target)
        return is_idle

    async def _pause(self) -> None:
        seconds = _HOUSEKEEPING_SECONDS if self.delays.open else _POLL_SECONDS
        next_ms = self.delays.next_ms()
        if next_ms is not None and self._target is not None:
            seconds = min(seconds, max(_round_up_to_tick(next_ms) - self._ahead_ms - self._clock.now_ms(), 1) / 1000)
        timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    # Releases

    async def _ready_target(self) -> DelayTarget | None:
        """Return T's partition if this broker leads it. In a new leadership, append all open releases first."""
        partition = self._find_target()
        if partition is None:
            self._target = None
        elif self._target is None or self._target.partition is not partition or not self._target.is_leader_here:
            self._target = None
            target = DelayTarget(partition)
            missing = await target.missing(self.delays.open)
            self._log.ensure_leader()
            target.ensure_leader()
            for release in self.delays.open:
                release.committed_at = None if release in missing else partition.log.end_offset
            for release in missing:
                await self._reappend_release(target, release)
            self._target = target
        return self._target

    async def _reappend_release(self, target: DelayTarget, release: OpenRelease) -> None:
        messages = await self._log.messages(release.announced.offsets)
        await self._until(release.announced.at)
        try:
            release.committed_at = target.append(self._batch(release.announced, messages), self._clock.now_ms())
        except OutOfOrderSequence:
            # T has lost earlier batches of the producer because of an unclean election.
            for earlier in self.delays.open:
                if earlier.offset < release.offset:
                    await self._committed(target, earlier)
            self._producer = None
            await self._ensure_producer()
            offsets, moved = release.announced.offsets, self.delays.rescheduled
            again = [(offset, moved[offset]) for offset in offsets if offset in moved]
            await self._announce(target, self._clock.now_ms(), offsets, again, messages, release.offset)

    async def _release(self, target: DelayTarget) -> bool:
        """Release due messages; return whether there may be more."""
        next_ms, soon_ms = self.delays.next_ms(), self._clock.now_ms() + int(self._ahead_ms)
        if next_ms is None or _round_up_to_tick(next_ms) > soon_ms:
            return False
        # Messages that are almost due will be due when they have been announced.
        taken = self.delays.take(max(_round_up_to_tick(next_ms), soon_ms), self._count_max())
        if not taken:
            return self.delays.next_ms() == 0
        try:
            self._ensure_space()
            target.ensure_writable()
            if len(self.delays.open) >= _OPEN_MAX:
                await self._committed(target, self.delays.open[0])
            await self._ensure_producer()
            messages = await self._log.messages([due.offset for due in taken], 4 * _RELEASED_BYTES_MAX)
            target.ensure_leader()
            chosen = self._choose(target, [due for due in taken if self.delays.is_current(due)], messages)
            if chosen:
                at_ms = max(_round_up_to_tick(chosen[-1].due_ms), self._clock.now_ms())
                again = [(due.offset, due_ms) for due in chosen if (due_ms := _next_repeat_ms(due, messages, at_ms))]
                offsets = [due.offset for due in chosen]
                await self._announce(target, at_ms, offsets, again, messages, self._done(target))
                self._counts.record_release(self._clock.now_ms(), chosen[0].due_ms, len(chosen))
        finally:
            for due in taken:
                self.delays.put_back(due)  # unless it was cancelled
        return True

    async def _until(self, at_ms: int) -> None:
        """Wait until a time, but only briefly even if the clock is changed."""
        left_ms = min(at_ms - self._clock.now_ms(), _AHEAD_MS_MAX + TICK_MS)
        if left_ms > 0:
            await asyncio.sleep(left_ms / 1000)
            self._log.ensure_leader()

    async def _ensure_producer(self) -> None:
        """Allocate a producer id for this leadership, so that the sequences of earlier ones do not matter."""
        if self._producer is None:
            self._producer, self._sequence = await self._next_producer_id(), 0
            self._log.ensure_leader()

    async def _committed(self, target: DelayTarget, release: OpenRelease) -> None:
        assert release.committed_at is not None
        wait = target.partition.committed(release.committed_at, inf)
        if wait is not None:
            await wait
        self._log.ensure_leader()

    def _choose(
        self, target: DelayTarget, dues: Sequence[DueMessage], messages: dict[int, BatchRecord]
    ) -> list[DueMessage]:
        """Choose messages that fit into a batch of T, at least one whatever its size, since it was accepted before."""
        config = target.partition.config
        keyless = [due.offset for due in dues if due.offset in messages and messages[due.offset].key is None]
        if keyless and config.compacts:
            self._append(Dropped(self._clock.now_ms(), keyless, "T is compacted, and they have no key"))
            log.error(
                "delayed messages without a key dropped, the topic is compacted partition=%s messages=%d",
                self,
                len(keyless),
            )
        chosen: list[DueMessage] = []
        size_bytes = 0
        for due in dues:
            message = messages.get(due.offset)
            if message is None or due.offset not in self.delays:
                continue
            size_bytes += estimate_record_bytes(message)
            if chosen and size_bytes > min(_RELEASED_BYTES_MAX, config.max_message_bytes):
                break
            chosen.append(due)
        return chosen

    async def _announce(
        self,
        target: DelayTarget,
        at_ms: int,
        offsets: list[int],
        again: list[tuple[int, int]],
        messages: dict[int, BatchRecord],
        done: int,
    ) -> None:
        """Perform the first two steps of a release, the first one without an await."""
        assert self._producer is not None
        announced = Releasing(
            at=at_ms,
            producer=self._producer,
            sequence=self._sequence,
            end=target.partition.log.end_offset,
            offsets=offsets,
            again=again,
            done=done,
        )
        batch = compress_for_topic(self._batch(announced, messages), target)
        end_offset = self._append(announced)
        self._sequence = (self._sequence + len(offsets)) & SEQUENCE_MASK
        release = self.delays.open[-1]
        started = self._clock.monotonic()
        await self._log.committed(end_offset)
        took_ms = (self._clock.monotonic() - started) * 1000
        self._ahead_ms += (min(took_ms, _AHEAD_MS_MAX) - self._ahead_ms) / 8
        await self._until(at_ms)
        # If the leadership of T has ended meanwhile, this raises, and the next leader performs the release.
        release.committed_at = target.append(batch, announced.at)

    def _batch(self, announced: Releasing, messages: dict[int, BatchRecord]) -> EncodedBatch:
        chosen = [messages[offset] for offset in announced.offsets]
        return build_release(announced, chosen, self.partition.topic, self.partition.index)

    def _count_max(self) -> int:
        """Limit the number of messages to read, so that few are read unnecessarily."""
        stored = self.partition.log
        average = stored.size_bytes // max(stored.end_offset - stored.start_offset, 1)
        return max(min(_RELEASED_MAX, 2 * _RELEASED_BYTES_MAX // max(average, 1)), 1)

    # Completion

    def _done(self, target: DelayTarget) -> int:
        done = -1
        for release in self.delays.open:
            if release.committed_at is None or release.committed_at > target.partition.high_watermark:
                break
            done = release.offset
        return done

    async def _run_housekeeping(self, target: DelayTarget | None) -> None:
        now = self._clock.monotonic()
        if now - self._kept < _HOUSEKEEPING_SECONDS:
            return
        self._kept = now
        self.delays.sweep()
        if self.delays.open and target is not None:
            done = self._done(target)
            if done >= self.delays.open[0].offset:
                self._append(Released(self._clock.now_ms(), done))
        floor = min(self.delays.floor, self.partition.high_watermark)
        over = floor - self.partition.log.start_offset
        if over >= _TRIM_RECORDS or (over > 0 and now - self._trimmed >= _TRIM_SECONDS):
            self._trimmed = now
            await self.partition.log.advance_start(floor)
            self.partition.notify_followers()


def _round_up_to_tick(due_ms: int) -> int:
    return -(-due_ms // TICK_MS) * TICK_MS


def _next_repeat_ms(due: DueMessage, messages: dict[int, BatchRecord], now_ms: int) -> int | None:
    value = header_value(messages[due.offset].headers, REPEAT)
    repeat = None if value is None else parse_repeat_header(value)
    return None if repeat is None else repeat.next_ms(due.due_ms, now_ms)
