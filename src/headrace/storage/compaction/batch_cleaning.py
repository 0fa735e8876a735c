"""Clean one batch: decide which of its records stay. The rules of compaction are those of Kafka's log cleaner:

    record          kept if it is the newest of its key; removed if it has no key
    tombstone       a newest record without a value: kept until the delete horizon of its batch has passed
    aborted batch   loses all its records
    marker          kept as long as a batch of its transaction is, and then until its delete horizon has passed
    empty batch     removed, unless it is the last one of its producer, whose sequence is in its header; or the last one
                    of the log, because a follower receives only batches and could not reach the end of the log

- With retention.mode=acked, records that are settled are removed instead, and markers stay (`SettledCleaningRules`).
- The first pass that finds a tombstone, or a marker whose transaction is gone, sets the delete horizon. It is stored in
  the batch: attribute bit 6, and the base timestamp, to which the timestamps of records are relative.
- A batch keeps its offsets, producer and sequence. A batch that loses no records stays byte for byte.
- A batch whose records cannot be decoded stays as it is; its records do not supersede others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from headrace.machines.transactions.partition_transactions import AbortedTransaction
from headrace.model.errors import HeadraceError
from headrace.storage.compaction.offset_map import OffsetMap
from headrace.wire.batches.batch import (
    CONTROL,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    parse_marker,
    set_crc,
)
from headrace.wire.batches.compression import NONE, compress, decompress
from headrace.wire.codec.primitives import read_varint, varint

if TYPE_CHECKING:
    from headrace.machines.queues.settled_offsets import SettledOffsets

DELETE_HORIZON = 1 << 6  # of the attributes
UNPACKED_BYTES_MAX = 256 << 20
NO_TIMESTAMP = -1
_LENGTH_END = 12  # the length field does not count the bytes up to its own end


# One record in the uncompressed records of its batch: start, end, offset delta, key, whether it has a value. A plain
# tuple, because building named fields costs more than parsing the record.
RecordLocation: TypeAlias = tuple[int, int, int, bytes | None, bool]


class AbortedTransactions:
    """The aborted transactions of a log, by producer; those of one producer do not overlap."""

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for one in sorted(transactions, key=lambda one: one.first_offset):
            self._ranges.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))

    def holds(self, header: BatchHeader) -> bool:
        if not header.is_transactional or header.is_control:
            return False
        ranges = self._ranges.get(header.producer_id, [])
        at = bisect_right(ranges, header.base_offset, key=itemgetter(0)) - 1
        return at >= 0 and header.base_offset <= ranges[at][1]


class CleaningRules(msgspec.Struct):
    """What both kinds of rules know and count in one pass."""

    last_batches: dict[int, int]  # producer id -> base offset of its last batch
    last_offset: int = -1  # of the log, if it ends with these segments
    dropped_aborts: list[int] = msgspec.field(default_factory=list)  # offsets of removed abort markers
    records_kept: int = 0

    def clean(self, batch: bytes, header: BatchHeader) -> bytes | bytearray | None:
        """The cleaned batch, or None if it is removed."""
        raise NotImplementedError

    def _unchanged(self, batch: bytes, header: BatchHeader) -> bytes:
        self.records_kept += header.record_count
        return batch

    def _emptied(self, batch: bytes, header: BatchHeader) -> bytes | bytearray | None:
        return strip_records(batch, header) if self._is_last(header) else None

    def _is_last(self, header: BatchHeader) -> bool:
        """Whether the batch is the last one of its producer, or of the log."""
        is_last_of_log = header.last_offset == self.last_offset
        return is_last_of_log or self.last_batches.get(header.producer_id) == header.base_offset


class CompactionRules(CleaningRules, kw_only=True):
    """The rules of compaction for one pass, with the transactions that the pass has seen so far."""

    newest: OffsetMap
    end_offset: int  # the map covers the records below; batches above stay unchanged
    aborted: AbortedTransactions
    now_ms: int
    delete_retention_ms: int
    unfinished: set[int] = msgspec.field(default_factory=set)  # producers with a batch that no marker has followed yet

    def clean(self, batch: bytes, header: BatchHeader) -> bytes | bytearray | None:
        if header.base_offset >= self.end_offset:
            return self._unchanged(batch, header)
        if header.is_control:
            return self._clean_marker(batch, header)
        if header.is_transactional:
            self.unfinished.add(header.producer_id)
        if self.aborted.holds(header):
            return self._emptied(batch, header)
        unpacked = unpack_records(batch, header)
        if unpacked is None:
            return self._unchanged(batch, header)
        data, records = unpacked
        kept = self._kept(records, header)
        self.records_kept += len(kept)
        if not kept:
            return self._emptied(batch, header)
        has_tombstone = not all(has_value for *_, has_value in kept)
        horizon_ms = (
            self.now_ms + self.delete_retention_ms if has_tombstone and not _has_delete_horizon(header) else None
        )
        if horizon_ms is None and len(kept) == len(records):
            return batch
        return rebuild_batch(data, kept, header, horizon_ms)

    def _kept(self, records: list[RecordLocation], header: BatchHeader) -> list[RecordLocation]:
        newest, base_offset = self.newest.newest, header.base_offset
        deletes_stay = not _has_delete_horizon(header) or self.now_ms < header.base_timestamp
        return [
            record
            for record in records
            if (key := record[3]) is not None and (deletes_stay or record[4]) and base_offset + record[2] >= newest(key)
        ]

    def _clean_marker(self, batch: bytes, header: BatchHeader) -> bytes | bytearray | None:
        marker = parse_marker(memoryview(batch), header)
        is_needed = marker is None or header.producer_id in self.unfinished
        self.unfinished.discard(header.producer_id)
        if not is_needed and not _has_delete_horizon(header):
            unpacked = unpack_records(batch, header)
            assert unpacked is not None, "its marker has been parsed"
            return rebuild_batch(*unpacked, header, self.now_ms + self.delete_retention_ms)
        if is_needed or self.now_ms < header.base_timestamp or self._is_last(header):
            return batch
        if marker is not None and not marker.is_commit:
            self.dropped_aborts.append(header.base_offset)
        return None


class SettledCleaningRules(CleaningRules, kw_only=True):
    """The rules of acked retention for one pass: records at offsets that all subscriptions have settled are removed.

    Markers stay, because batches of their transactions may lie before the segments of this pass.
    """

    settled: SettledOffsets

    def clean(self, batch: bytes, header: BatchHeader) -> bytes | bytearray | None:
        if header.is_control or not self._touches(header):
            return self._unchanged(batch, header)
        unpacked = unpack_records(batch, header)
        if unpacked is None:
            return self._unchanged(batch, header)
        data, records = unpacked
        base_offset = header.base_offset
        kept = [record for record in records if base_offset + record[2] not in self.settled]
        self.records_kept += len(kept)
        if not kept:
            return self._emptied(batch, header)
        return batch if len(kept) == len(records) else rebuild_batch(data, kept, header, None)

    def _touches(self, header: BatchHeader) -> bool:
        unsettled = self.settled.count_unsettled
        return unsettled(header.next_offset) - unsettled(header.base_offset) <= header.last_offset_delta


def unpack_records(batch: bytes, header: BatchHeader) -> tuple[bytes, list[RecordLocation]] | None:
    """The uncompressed records and the location of each; None if they contradict the header."""
    try:
        data = decompress(header.compression, memoryview(batch)[HEADER_SIZE:], UNPACKED_BYTES_MAX)
        return data, _walk(data, header.record_count)
    except (HeadraceError, IndexError):
        return None


def _walk(data: bytes, count: int) -> list[RecordLocation]:
    """The inner loop of compaction: numbers of one or two bytes, which nearly all are, are decoded inline.

    They are zigzag varints: the lowest bit of the first byte is the sign, and a field of negative size is null.
    """
    records: list[RecordLocation] = []
    position = 0
    for _ in range(count):
        size = data[position]
        at = position + 1
        if size > 127:
            size += (data[at] << 7) - 128
            at += 1
            if size > 0x3FFF:
                size, at = _read_large(data, position)
        end = at + (size >> 1)
        at += 1  # attributes
        while data[at] > 127:  # timestamp delta
            at += 1
        at += 1
        delta = data[at]
        at += 1
        if delta > 127:
            delta += (data[at] << 7) - 128
            at += 1
            if delta > 0x3FFF:
                delta, at = _read_large(data, at - 2)
        size = data[at]
        key = None
        if size > 127:
            size, at = _read_large(data, at)
        else:
            at += 1
        if not size & 1:
            key = data[at : at + (size >> 1)]
            at += size >> 1
        if at >= end or end > len(data):
            raise IndexError
        records.append((position, end, delta >> 1, key, not data[at] & 1))
        position = end
    if position != len(data):
        raise IndexError
    return records


def _read_large(data: bytes, position: int) -> tuple[int, int]:
    """A number of any size in zigzag form: with its sign in the lowest bit."""
    value, at = read_varint(data, position)
    return (value << 1) ^ (value >> 63), at


def rebuild_batch(data: bytes, kept: list[RecordLocation], header: BatchHeader, horizon_ms: int | None) -> bytearray:
    """The batch with only these records and, if given, with a delete horizon."""
    base_timestamp = header.base_timestamp if horizon_ms is None else horizon_ms
    attributes = header.attributes if horizon_ms is None else header.attributes | DELETE_HORIZON
    frames: list[bytes] = []
    newest = NO_TIMESTAMP
    for start, end, *_ in kept:
        _, body = read_varint(data, start)
        delta, rest = read_varint(data, body + 1)
        newest = max(newest, header.base_timestamp + delta)
        if horizon_ms is None:
            frames.append(data[start:end])
        else:
            moved = varint(header.base_timestamp + delta - horizon_ms)
            frames += (varint(1 + len(moved) + end - rest), data[body : body + 1], moved, data[rest:end])
    payload = b"".join(frames)
    if header.compression != NONE:
        payload = compress(header.compression, payload)
    max_timestamp = header.max_timestamp if header.is_log_append_time else newest
    return _build_batch(header, payload, attributes, base_timestamp, max_timestamp, len(kept))


def strip_records(batch: bytes, header: BatchHeader) -> bytes | bytearray:
    """The batch without records; the same object if it has none."""
    return make_empty_batch(header) if header.record_count else batch


def make_empty_batch(header: BatchHeader) -> bytearray:
    """A batch without records that keeps the offsets, epoch and sequence of its producer."""
    attributes = header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
    return _build_batch(header, b"", attributes, NO_TIMESTAMP, header.max_timestamp, 0)


def _build_batch(
    header: BatchHeader, payload: bytes, attributes: int, base_timestamp: int, max_timestamp: int, record_count: int
) -> bytearray:
    batch = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        batch,
        0,
        header.base_offset,
        HEADER_SIZE - _LENGTH_END + len(payload),
        header.leader_epoch,
        MAGIC,
        0,
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        record_count,
    )
    batch += payload
    set_crc(memoryview(batch))
    return batch


def _has_delete_horizon(header: BatchHeader) -> bool:
    return header.attributes & DELETE_HORIZON != 0
