"""Dedup windows: in topics with `dedup.window.ms`, a message whose `headrace-dedup-id` was seen of late is not stored.

There is one window per partition, and it belongs to the lead: whoever begins to lead reads from the end of the log
which ids it holds, and takes no messages with ids before that. Looking for an id, appending and noting it are one step.
An id is remembered for at least the window, counted from its arrival by the broker's clock, and as long as the log has
its message. The producer's timestamp does not count. A message that is read from the log counts from the latest time at
which it can have arrived: when the next segment was created, or now in the active segment. So an id that is read from
the log may live longer than the window, at most until one window after it was read.

A batch loses those of its messages that are duplicates, and keeps its offsets and its producer's sequence, as if it had
been compacted; so everything that is derived from the log stays right, here, on followers and after a crash. If nothing
is left of it, an idempotent producer's batch is appended empty, for the sake of its sequence, and any other is not
appended at all; either is answered with the offset of the first of the first messages. In between, the offset of a
duplicate is one at which there is no message. A message whose id is known is rejected, and its batch with it, if it has
a digest of its content (`headrace-dedup-digest`) that the known message does not have. Transactions may yet be aborted,
so in them ids are refused.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.partition import Appended, Partition
from headrace.broker.state_log import read_batches
from headrace.broker.topic import Topic
from headrace.model.errors import HeadraceError, InvalidRecord, NotEnoughReplicas
from headrace.model.message_headers import DEDUP_DIGEST, DEDUP_ID, DEDUP_ID_REUSED, dedup_key_of, header_of
from headrace.runtime.clock import AnchoredClock, Clock
from headrace.storage.log import Log
from headrace.wire.batch import HEADER_SIZE, BatchHeader, Record, parse_header, read_records

if TYPE_CHECKING:
    from headrace.machines.dedup import DedupWindow

log = logging.getLogger(__name__)


class _Hashes(NamedTuple):
    """Of an id, and of the id together with the digest of its content if the message has one."""

    hashed: bytes
    bound: bytes | None


class DedupId(NamedTuple):
    """Hashes of a message's id; and of its request's key, if the request had several messages and a digest."""

    hashed: bytes
    bound: bytes | None
    key: _Hashes | None = None


Ids = Sequence[DedupId | None]
"""Of the messages of a batch; empty if none of them has one."""

_UNPACKED_BYTES_MAX = 256 << 20  # the batches that are opened here have been checked


def ids_of(batch: memoryview, header: BatchHeader) -> Ids:
    """Raises `InvalidRecord` if there are any in a transaction."""
    found = [_id_of(record) for record in read_records(batch, header, _UNPACKED_BYTES_MAX)]
    if not any(found):
        return ()
    if header.is_transactional:
        why = f"a transactional message cannot have the header {DEDUP_ID} in a topic with dedup.window.ms"
        raise InvalidRecord(why, [(index, why) for index, dedup_id in enumerate(found) if dedup_id])
    return found


def _id_of(record: Record) -> DedupId | None:
    from headrace.machines.dedup import hash_of  # few brokers have such topics

    dedup_id = header_of(record.headers, DEDUP_ID)
    if not dedup_id:
        return None
    digest = header_of(record.headers, DEDUP_DIGEST)
    if not digest:
        return DedupId(hash_of(dedup_id), None)
    key = dedup_key_of(dedup_id)
    key_hashes = None if key is None else _Hashes(hash_of(key), hash_of(b"%b\0%b" % (digest, key)))
    return DedupId(hash_of(dedup_id), hash_of(b"%b\0%b" % (digest, dedup_id)), key_hashes)


class _Led:
    """The window of one partition, for one lead."""

    __slots__ = ("end_offset", "is_loaded", "partition", "window")

    def __init__(self, partition: Partition, window: DedupWindow) -> None:
        self.partition = partition
        self.window = window
        self.end_offset = partition.log.end_offset
        # Of an empty log, which most new topics have, there is nothing to read.
        self.is_loaded = partition.log.quarantined is None and partition.log.start_offset == self.end_offset


class _Arrivals:
    """The latest time at which each message of a log can have arrived, by this broker's clock.

    Segments and LogAppendTime batches carry wall time. If the wall clock was set back since the broker started, both
    may look older than they are: `behind_ms` is added to them. An id must never be forgotten early.
    """

    __slots__ = ("_base_offsets", "_behind_ms", "_latest_ms")

    def __init__(self, log: Log, now_ms: int, behind_ms: int) -> None:
        self._behind_ms = behind_ms
        self._base_offsets = [segment.base_offset for segment in log.segments]
        # A segment without any batch yet has no creation time.
        created = [segment.created_ms or now_ms for segment in log.segments[1:]]
        self._latest_ms = [*(min(created_ms + behind_ms, now_ms) for created_ms in created), now_ms]

    def first_offset_after(self, oldest_ms: int) -> int:
        """Where the first segment begins that may have a message from after `oldest_ms`."""
        return next(
            base_offset
            for base_offset, latest_ms in zip(self._base_offsets, self._latest_ms, strict=True)
            if latest_ms > oldest_ms
        )

    def latest_ms(self, batch: BatchHeader) -> int:
        latest_ms = self._latest_ms[bisect_right(self._base_offsets, batch.base_offset) - 1]
        if batch.is_log_append_time:
            return min(batch.max_timestamp + self._behind_ms, latest_ms)
        return latest_ms


class DedupWindows:
    """`begin` and `end` are told of every lead, and `reconfigure` of every topic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now_ms = AnchoredClock(clock).now_ms  # a jump of the wall clock must not end every id
        self._led: dict[Partition, _Led] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._is_stopped = asyncio.Event()

    # Appending

    def append(
        self, partition: Partition, batch: memoryview, header: BatchHeader, ids: Ids | None, now_ms: int
    ) -> Appended:
        """Append what is new in a checked batch. `ids` are those of the batch, if the caller has looked already.
        `now_ms` is the wall time to append with."""
        if ids is None:
            ids = ids_of(batch, header)
        if not ids:
            return partition.append(batch, header, now_ms)
        partition.ensure_led()
        window = self._window(partition)
        arrived_ms = self._now_ms()
        found = window.find([None if one is None else one.hashed for one in ids], arrived_ms)
        _reject_reused(window, ids, found, arrived_ms)
        duplicates = [offset for offset in found if offset is not None]
        partition.counts.duplicates += len(duplicates)
        if not duplicates:
            appended = partition.append(batch, header, now_ms)
        elif len(duplicates) == len(found) and header.producer_id < 0:
            return Appended(duplicates[0], max(duplicates) + 1, -1)
        else:
            # If the batch itself was sent before, its sequence tells, whatever it has lost by now.
            thinned = memoryview(_thinned(batch, header, [at for at, offset in enumerate(found) if offset is None]))
            appended = partition.append(thinned, parse_header(thinned), now_ms)
        new = [one if offset is None else None for one, offset in zip(ids, found, strict=True)]
        _note(window, new, range(appended.base_offset, appended.base_offset + len(ids)), arrived_ms)
        if len(duplicates) == len(found) and max(duplicates) < appended.base_offset:
            return appended._replace(base_offset=duplicates[0])
        return appended

    def _window(self, partition: Partition) -> DedupWindow:
        led = self._led.get(partition)
        if led is None or not led.is_loaded:
            # A producer comes again when it hears this, and knows no better word for it.
            raise NotEnoughReplicas(
                f"{partition.topic}-{partition.index} is still loading its deduplication window; retry"
            )
        return led.window

    # Leads

    def begin(self, partition: Partition) -> None:
        """This broker leads the partition from now on."""
        self._led.pop(partition, None)
        if not partition.config.dedup_window_ms or self._is_stopped.is_set():
            return
        from headrace.machines.dedup import DedupWindow  # few brokers have such topics

        led = self._led[partition] = _Led(partition, DedupWindow(partition.config.dedup_window_ms))
        self._start_to_load(led)

    def end(self, partition: Partition) -> None:
        self._led.pop(partition, None)

    def reconfigure(self, topic: Topic) -> None:
        window_ms = topic.config.dedup_window_ms
        for partition in topic.led.values():
            led = self._led.get(partition)
            if led is not None and window_ms and window_ms <= led.window.window_ms:
                led.window.window_ms = window_ms
            elif led is not None or window_ms:
                self.begin(partition)  # what it has forgotten may be known to the log

    async def load(self) -> None:
        """Read what this broker has begun to lead, and all that it will; returns when it is stopped."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for led in self._led.values():
                self._start_to_load(led)
            await self._is_stopped.wait()

    def stop(self) -> None:
        self._is_stopped.set()

    def expire(self) -> None:
        """Give up the memory of what is over, also where nobody appends any more."""
        now_ms = self._now_ms()
        for led in self._led.values():
            led.window.expire(now_ms)

    # Loading

    def _start_to_load(self, led: _Led) -> None:
        if not led.is_loaded and self._tasks is not None:
            self._tasks.create_task(self._load(led))

    async def _load(self, led: _Led) -> None:
        partition = led.partition
        try:
            partition.ensure_readable()
            now_ms = self._now_ms()
            arrivals = _Arrivals(partition.log, now_ms, max(now_ms - self._clock.now_ms(), 0))
            oldest_ms = now_ms - led.window.window_ms
            offset = arrivals.first_offset_after(oldest_ms)
            while offset < led.end_offset and self._led.get(partition) is led:
                offset = max(offset, partition.log.start_offset)
                data, offset = await read_batches(partition, offset, led.end_offset)
                _read_ids(led.window, data, arrivals, oldest_ms)
                await asyncio.sleep(0)  # the loop has others to serve than this partition
            led.is_loaded = True
        except HeadraceError as error:
            if self._led.get(partition) is led:
                log.critical(
                    "deduplication window not loaded; messages with ids are rejected partition=%s-%d error=%s",
                    partition.topic,
                    partition.index,
                    error,
                )


def _read_ids(window: DedupWindow, data: bytes, arrivals: _Arrivals, oldest_ms: int) -> None:
    """Note the ids of stored batches. Of several messages with one id the last one counts: the id was free again when
    it arrived."""
    for header, batch in _outside_transactions(data):
        latest_ms = arrivals.latest_ms(header)
        if latest_ms <= oldest_ms:
            continue
        records = list(read_records(batch, header, _UNPACKED_BYTES_MAX))
        _note(window, [_id_of(record) for record in records], [record.offset for record in records], latest_ms)


def _note(window: DedupWindow, ids: Ids, offsets: Sequence[int], at_ms: int) -> None:
    """The ids of one batch, and each key of a request once: a batch may have thousands of its messages."""
    keys: dict[_Hashes, int] = {}
    for dedup_id, offset in zip(ids, offsets, strict=True):
        if dedup_id is None:
            continue
        _note_hashes(window, dedup_id.hashed, dedup_id.bound, offset, at_ms)
        if dedup_id.key is not None:
            keys.setdefault(dedup_id.key, offset)
    for key, offset in keys.items():
        _note_hashes(window, *key, offset, at_ms)


def _note_hashes(window: DedupWindow, hashed: bytes, bound: bytes | None, offset: int, at_ms: int) -> None:
    window.note(hashed, offset, at_ms)
    if bound is not None:
        window.note(bound, offset, at_ms)


def _reject_reused(window: DedupWindow, ids: Ids, found: Sequence[int | None], now_ms: int) -> None:
    """Raise `InvalidRecord` for messages whose id, or the key of whose request, is known, but not together with the
    digest of their content."""

    def is_unbound(bound: bytes | None) -> bool:
        return bound is not None and window.find([bound], now_ms) == [None]

    keys = {one.key for one in ids if one is not None and one.key is not None}
    reused_keys = {key for key in keys if window.find([key.hashed], now_ms) != [None] and is_unbound(key.bound)}
    reused = [
        (at, DEDUP_ID_REUSED)
        for at, (dedup_id, offset) in enumerate(zip(ids, found, strict=True))
        if dedup_id is not None
        and (dedup_id.key in reused_keys or (offset is not None and offset >= 0 and is_unbound(dedup_id.bound)))
    ]
    if reused:
        raise InvalidRecord(DEDUP_ID_REUSED, reused)


def _thinned(batch: memoryview, header: BatchHeader, kept: Sequence[int]) -> bytearray:
    """The batch with these of its messages only."""
    from headrace.storage.cleaning import emptied, rebuilt, unpack  # only where there are duplicates

    if not kept:
        return emptied(header)
    unpacked = unpack(bytes(batch), header)
    assert unpacked is not None, "it has been read before"
    data, records = unpacked
    return rebuilt(data, [records[at] for at in kept], header, None)


def _outside_transactions(data: bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    view = memoryview(data)
    position = 0
    while position + HEADER_SIZE <= len(view):
        header = parse_header(view, position)
        batch = view[position : position + header.size_bytes]
        position += header.size_bytes
        if not header.is_control and not header.is_transactional:
            yield header, batch
