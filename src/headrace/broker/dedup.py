"""Dedup windows: in topics with `dedup.window.ms`, a message whose `headrace-dedup-id` was seen of late is not stored.

There is one window per partition, and it belongs to the lead: whoever begins to lead reads from the end of the log
which ids it holds, and takes no messages with ids before that. Looking for an id, appending and noting it are one step.
The window goes by the broker's time; what is read from the log counts from its timestamp, or from that of a message
before it if that is newer. An id is known as long as the log has its message, too.

A batch loses those of its messages that are duplicates, and keeps its offsets and its producer's sequence, as if it had
been compacted; so everything that is derived from the log stays right, here, on followers and after a crash. If nothing
is left of it, an idempotent producer's batch is appended empty, for the sake of its sequence, and any other is not
appended at all; either is answered with the offset of the first of the first messages. In between, the offset of a
duplicate is one at which there is no message. Transactions may yet be aborted, so in them ids are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headrace.broker.partition import Appended, Partition
from headrace.broker.state_log import read_batches
from headrace.broker.topic import Topic
from headrace.model.errors import HeadraceError, InvalidRecord, NotEnoughReplicas
from headrace.model.message_headers import DEDUP_ID, header_of
from headrace.runtime.clock import Clock
from headrace.wire.batch import HEADER_SIZE, BatchHeader, Record, parse_header, read_records

if TYPE_CHECKING:
    from headrace.machines.dedup import DedupWindow

log = logging.getLogger(__name__)

Ids = Sequence[bytes | None]
"""Of the messages of a batch; empty if none of them has one."""

_UNPACKED_BYTES_MAX = 256 << 20  # the batches that are opened here have been checked


def ids_of(batch: memoryview, header: BatchHeader) -> Ids:
    """Raises `InvalidRecord` if there are any in a transaction."""
    from headrace.machines.dedup import hash_of  # few brokers have such topics

    found = [header_of(record.headers, DEDUP_ID) for record in read_records(batch, header, _UNPACKED_BYTES_MAX)]
    if not any(found):
        return ()
    if header.is_transactional:
        why = f"a message of a transaction cannot have {DEDUP_ID} in a topic with dedup.window.ms"
        raise InvalidRecord(why, [(index, why) for index, dedup_id in enumerate(found) if dedup_id])
    return [hash_of(dedup_id) if dedup_id else None for dedup_id in found]


class _Led:
    """The window of one partition, for one lead."""

    __slots__ = ("end_offset", "is_loaded", "partition", "window")

    def __init__(self, partition: Partition, window: DedupWindow) -> None:
        self.partition = partition
        self.window = window
        self.end_offset = partition.log.end_offset
        # Of an empty log, which most new topics have, there is nothing to read.
        self.is_loaded = partition.log.quarantined is None and partition.log.start_offset == self.end_offset


class DedupWindows:
    """`begin` and `end` are told of every lead, and `reconfigure` of every topic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._led: dict[Partition, _Led] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._is_stopped = asyncio.Event()

    # Appending

    def append(
        self, partition: Partition, batch: memoryview, header: BatchHeader, ids: Ids | None, now_ms: int
    ) -> Appended:
        """Append what is new in a checked batch. `ids` are those of the batch, if the caller has looked already."""
        if ids is None:
            ids = ids_of(batch, header)
        if not ids:
            return partition.append(batch, header, now_ms)
        partition.ensure_led()
        window = self._window(partition)
        found = window.find(ids, now_ms)
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
        for at, dedup_id in enumerate(ids):
            if dedup_id is not None and found[at] is None:
                window.note(dedup_id, appended.base_offset + at, now_ms)
        if len(duplicates) == len(found) and max(duplicates) < appended.base_offset:
            return appended._replace(base_offset=duplicates[0])
        return appended

    def _window(self, partition: Partition) -> DedupWindow:
        led = self._led.get(partition)
        if led is None or not led.is_loaded:
            # A producer comes again when it hears this, and knows no better word for it.
            raise NotEnoughReplicas(f"{partition.topic}-{partition.index} still reads which {DEDUP_ID} it has")
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
        now_ms = self._clock.now_ms()
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
            oldest_ms = self._clock.now_ms() - led.window.window_ms
            first = await partition.log.offset_for_timestamp(oldest_ms, led.end_offset)
            offset = led.end_offset if first is None else first.offset
            while offset < led.end_offset and self._led.get(partition) is led:
                offset = max(offset, partition.log.start_offset)
                data, offset = await read_batches(partition, offset, led.end_offset)
                self._take(led, data)
                await asyncio.sleep(0)  # the loop has others to serve than this partition
            led.is_loaded = True
        except HeadraceError as error:
            if self._led.get(partition) is led:
                log.critical("%s-%d takes no messages with ids: %s", partition.topic, partition.index, error)

    def _take(self, led: _Led, data: bytes) -> None:
        from headrace.machines.dedup import hash_of

        now_ms = self._clock.now_ms()
        for record in _outside_transactions(data):
            dedup_id = header_of(record.headers, DEDUP_ID)
            if dedup_id:
                hashed = hash_of(dedup_id)
                # Nothing was appended in the future, whatever its producer's clock says.
                at_ms = min(record.timestamp_ms, now_ms)
                if led.window.find([hashed], at_ms) == [None]:
                    led.window.note(hashed, record.offset, at_ms)


def _thinned(batch: memoryview, header: BatchHeader, kept: Sequence[int]) -> bytearray:
    """The batch with these of its messages only."""
    from headrace.storage.cleaning import emptied, rebuilt, unpack  # only where there are duplicates

    if not kept:
        return emptied(header)
    unpacked = unpack(bytes(batch), header)
    assert unpacked is not None, "it has been read before"
    data, records = unpacked
    return rebuilt(data, [records[at] for at in kept], header, None)


def _outside_transactions(data: bytes) -> Iterator[Record]:
    view = memoryview(data)
    position = 0
    while position + HEADER_SIZE <= len(view):
        header = parse_header(view, position)
        batch = view[position : position + header.size_bytes]
        position += header.size_bytes
        if not header.is_control and not header.is_transactional:
            yield from read_records(batch, header, _UNPACKED_BYTES_MAX)
