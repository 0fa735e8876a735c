"""Deduplication windows: topics with `dedup.window.ms` drop messages whose `headrace-dedup-id` was used recently.

- There is one window per partition and leadership. A new leader loads the ids from the end of the log, and rejects
  messages with ids before that. Lookup, append and update of the window are one step.
- An id is remembered for at least the window, counted from its arrival by the broker's clock, provided that the log
  still has its message. The producer's timestamp is ignored. For a message that is loaded from the log, the latest
  possible arrival time is used: the creation of the next segment, or now for the active segment. Therefore a loaded id
  may be remembered for longer than the window, but at most for one window after the load.
- Duplicates are removed from a batch as by compaction: the batch keeps its offsets and its producer sequence, so all
  state that is derived from the log stays correct, here, on followers and after a crash. The offset of a duplicate has
  no message.
- If all messages of a batch are duplicates, the batch of an idempotent producer is appended empty to keep its sequence;
  any other batch is not appended. The response contains the offset of the original of the first message.
- A message with a digest of its content (`headrace-dedup-digest`) that differs from that of the known message with the
  same id is rejected together with its batch.
- Messages with ids are rejected in transactions, which may still be aborted.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.coordination.shards import Shard, ShardedCoordinator
from headrace.broker.coordination.state_log import read_batches
from headrace.broker.partition import AppendResult, Partition
from headrace.broker.topic import Topic
from headrace.model.errors import HeadraceError, InvalidRecord, NotEnoughReplicas
from headrace.model.message_headers import DEDUP_DIGEST, DEDUP_ID, DEDUP_ID_REUSED, dedup_key_of, header_value
from headrace.runtime.clock import Clock
from headrace.storage.log.log import Log
from headrace.wire.batches.batch import BatchHeader, BatchRecord, parse_header, read_records, split_batches

if TYPE_CHECKING:
    from headrace.machines.produce.dedup_window import DedupWindow

log = logging.getLogger(__name__)


class _Hashes(NamedTuple):
    """Hashes of an id, and of the id combined with the digest of the content if the message has one."""

    hashed: bytes
    bound: bytes | None


class DedupId(NamedTuple):
    """Hashes of a message's id, and of the key of its request if that was a batch request with a digest."""

    hashed: bytes
    bound: bytes | None
    key: _Hashes | None = None


DedupIds = Sequence[DedupId | None]
"""The ids of the messages of a batch; empty if no message has one."""

_UNPACKED_BYTES_MAX = 256 << 20  # batches that are decoded here have already been validated


def read_dedup_ids(batch: memoryview, header: BatchHeader) -> DedupIds:
    """Return the ids of a batch; raise `InvalidRecord` if a transactional batch has any."""
    found = [_read_dedup_id(record) for record in read_records(batch, header, _UNPACKED_BYTES_MAX)]
    if not any(found):
        return ()
    if header.is_transactional:
        why = f"a transactional message cannot have the header {DEDUP_ID} in a topic with dedup.window.ms"
        raise InvalidRecord(why, [(index, why) for index, dedup_id in enumerate(found) if dedup_id])
    return found


def _read_dedup_id(record: BatchRecord) -> DedupId | None:
    from headrace.machines.produce.dedup_window import hash_dedup_id  # imported on first use: keeps startup fast

    dedup_id = header_value(record.headers, DEDUP_ID)
    if not dedup_id:
        return None
    digest = header_value(record.headers, DEDUP_DIGEST)
    if not digest:
        return DedupId(hash_dedup_id(dedup_id), None)
    key = dedup_key_of(dedup_id)
    key_hashes = None if key is None else _Hashes(hash_dedup_id(key), hash_dedup_id(b"%b\0%b" % (digest, key)))
    return DedupId(hash_dedup_id(dedup_id), hash_dedup_id(b"%b\0%b" % (digest, dedup_id)), key_hashes)


class _ArrivalTimes:
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
        """Return the base offset of the first segment that may have a message from after `oldest_ms`."""
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


class DedupWindowShard(Shard):
    def __init__(self, partition: Partition, window: DedupWindow, clock: Clock, now_ms: Callable[[], int]) -> None:
        super().__init__(partition)
        self.window = window
        self._end_offset = partition.log.end_offset
        self._clock = clock
        self._now_ms = now_ms

    async def load(self) -> None:
        partition = self.partition
        try:
            partition.ensure_readable()
            now_ms = self._now_ms()
            arrivals = _ArrivalTimes(partition.log, now_ms, max(now_ms - self._clock.now_ms(), 0))
            oldest_ms = now_ms - self.window.window_ms
            offset = arrivals.first_offset_after(oldest_ms)
            while offset < self._end_offset:
                offset = max(offset, partition.log.start_offset)
                data, offset = await read_batches(partition, offset, self._end_offset)
                _read_ids(self.window, data, arrivals, oldest_ms)
                await asyncio.sleep(0)  # yield to other partitions
            self.is_loaded = True
        except HeadraceError as error:
            log.critical(
                "deduplication window not loaded; messages with ids are rejected partition=%s-%d error=%s",
                partition.topic,
                partition.index,
                error,
            )

    def tick(self) -> None:
        """Remove expired ids, also from partitions without further appends."""
        self.window.expire(self._now_ms())


class DedupWindows(ShardedCoordinator[Partition, DedupWindowShard]):
    """The windows of all partitions that this broker leads. `reconfigure` is called for every changed topic."""

    def append(
        self, partition: Partition, batch: memoryview, header: BatchHeader, ids: DedupIds | None, now_ms: int
    ) -> AppendResult:
        """Append the new messages of a validated batch. `ids` are the ids of the batch if the caller has already read
        them. `now_ms` is the wall time of the append."""
        if ids is None:
            ids = read_dedup_ids(batch, header)
        if not ids:
            return partition.append(batch, header, now_ms)
        partition.ensure_leader()
        window = self._window(partition)
        arrived_ms = self.now_ms()
        found = window.find([None if one is None else one.hashed for one in ids], arrived_ms)
        _reject_reused_ids(window, ids, found, arrived_ms)
        duplicates = [offset for offset in found if offset is not None]
        partition.counts.duplicates += len(duplicates)
        if not duplicates:
            appended = partition.append(batch, header, now_ms)
        elif len(duplicates) == len(found) and header.producer_id < 0:
            return AppendResult(duplicates[0], max(duplicates) + 1, -1)
        else:
            # A retried batch is detected by its sequence, regardless of the duplicates that were removed from it.
            thinned = memoryview(
                _without_duplicates(batch, header, [at for at, offset in enumerate(found) if offset is None])
            )
            appended = partition.append(thinned, parse_header(thinned), now_ms)
        new = [one if offset is None else None for one, offset in zip(ids, found, strict=True)]
        _add_ids(window, new, range(appended.base_offset, appended.base_offset + len(ids)), arrived_ms)
        if len(duplicates) == len(found) and max(duplicates) < appended.base_offset:
            return appended._replace(base_offset=duplicates[0])
        return appended

    def _window(self, partition: Partition) -> DedupWindow:
        shard = self._shards.get(partition)
        if shard is None or not shard.is_loaded:
            # Producers retry on this error; there is no more specific one.
            raise NotEnoughReplicas(
                f"{partition.topic}-{partition.index} is still loading its deduplication window; retry"
            )
        return shard.window

    def reconfigure(self, topic: Topic) -> None:
        window_ms = topic.config.dedup_window_ms
        for partition in topic.led.values():
            shard = self._shards.get(partition)
            if shard is not None and window_ms and window_ms <= shard.window.window_ms:
                shard.window.window_ms = window_ms
            elif shard is not None or window_ms:
                self.begin(partition)  # the log may still have ids that the window no longer has

    def _key_of(self, partition: Partition) -> Partition:
        return partition

    def _create_shard(self, partition: Partition) -> DedupWindowShard | None:
        if not partition.config.dedup_window_ms:
            return None
        from headrace.machines.produce.dedup_window import DedupWindow  # imported on first use: keeps startup fast

        window = DedupWindow(partition.config.dedup_window_ms)
        return DedupWindowShard(partition, window, self._clock, self.now_ms)


def _read_ids(window: DedupWindow, data: bytes, arrivals: _ArrivalTimes, oldest_ms: int) -> None:
    """Add the ids of stored batches. Of several messages with the same id the last one applies, since the id had
    expired when it arrived."""
    for batch, header in split_batches(data):
        if header.is_control or header.is_transactional:
            continue
        latest_ms = arrivals.latest_ms(header)
        if latest_ms <= oldest_ms:
            continue
        records = list(read_records(batch, header, _UNPACKED_BYTES_MAX))
        _add_ids(
            window, [_read_dedup_id(record) for record in records], [record.offset for record in records], latest_ms
        )


def _add_ids(window: DedupWindow, ids: DedupIds, offsets: Sequence[int], at_ms: int) -> None:
    """Add the ids of one batch, and each request key only once: a batch may have thousands of messages of a request."""
    keys: dict[_Hashes, int] = {}
    for dedup_id, offset in zip(ids, offsets, strict=True):
        if dedup_id is None:
            continue
        _add_hashes(window, dedup_id.hashed, dedup_id.bound, offset, at_ms)
        if dedup_id.key is not None:
            keys.setdefault(dedup_id.key, offset)
    for key, offset in keys.items():
        _add_hashes(window, *key, offset, at_ms)


def _add_hashes(window: DedupWindow, hashed: bytes, bound: bytes | None, offset: int, at_ms: int) -> None:
    window.add(hashed, offset, at_ms)
    if bound is not None:
        window.add(bound, offset, at_ms)


def _reject_reused_ids(window: DedupWindow, ids: DedupIds, found: Sequence[int | None], now_ms: int) -> None:
    """Raise `InvalidRecord` for messages whose id or request key is known, but with a different digest."""

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


def _without_duplicates(batch: memoryview, header: BatchHeader, kept: Sequence[int]) -> bytearray:
    from headrace.storage.compaction.batch_cleaning import (  # only needed for duplicates
        make_empty_batch,
        rebuild_batch,
        unpack_records,
    )

    if not kept:
        return make_empty_batch(header)
    unpacked = unpack_records(bytes(batch), header)
    assert unpacked is not None, "the batch was decoded before"
    data, records = unpacked
    return rebuild_batch(data, [records[at] for at in kept], header, None)
