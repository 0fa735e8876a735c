"""Reading what is to be leased: of each range that was chosen its batches, as few as hold it.

One piece of the file goes out by sendfile, as Fetch has it; several are joined in memory. Only what was read may be
granted, so a range that lies on both sides of a segment's end, or of the byte limit, is granted in part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.broker.batches import batches_of, is_aborted
from headrace.broker.partition import Partition
from headrace.machines.partition_transactions import AbortedTransaction
from headrace.machines.subscription_answers import Range
from headrace.storage.reading import ColdRead, LogSlice

_ONE_BATCH = 1  # byte: the first batch is given however large it is
_COLD_BYTES_MAX = 1 << 20  # what one cold read may take of memory, however much was asked for


class Pieces(NamedTuple):
    """`records` are whole batches that hold all of `ranges`."""

    ranges: list[Range]
    records: LogSlice | bytes


def read_ranges(
    partition: Partition, ranges: Sequence[Range], size_bytes_max: int, end_offset: int
) -> Pieces | ColdRead:
    """At least one batch. Cold is an answer only if the first range is; what is cold behind it can wait."""
    first = read_range(partition, *ranges[0], size_bytes_max, end_offset)
    if isinstance(first, ColdRead):
        return first
    slices = [first]
    if len(ranges) > 1 and first.next_offset > ranges[0].last:
        try:
            _read_on(partition, slices, ranges[1:], size_bytes_max, end_offset)
        except BaseException:
            for one in slices:
                one.release()
            raise
    reached = slices[-1].next_offset
    return Pieces(below(ranges, reached), _joined(slices))


def _read_on(
    partition: Partition, slices: list[LogSlice], ranges: Iterable[Range], size_bytes_max: int, end_offset: int
) -> None:
    """Read on as long as every range is whole and there is room."""
    size_bytes = len(slices[0])
    for first, last in ranges:
        # A batch may hold the end of one range and the beginning of the next.
        begin = max(first, slices[-1].next_offset)
        if begin > last:
            continue
        if size_bytes >= size_bytes_max:
            return
        piece = read_range(partition, begin, last, size_bytes_max - size_bytes, end_offset)
        if isinstance(piece, ColdRead):
            return
        slices.append(piece)
        size_bytes += len(piece)
        if piece.next_offset <= last:
            return


def read_range(
    partition: Partition, first: int, last: int, size_bytes_max: int, end_offset: int
) -> LogSlice | ColdRead:
    """The batches from the one that holds `first` to the one that holds `last`, or as many as there is room for."""
    piece = partition.read(first, _ONE_BATCH, end_offset)
    if isinstance(piece, ColdRead):
        return partition.read(first, min(size_bytes_max, _COLD_BYTES_MAX), end_offset)
    if piece.next_offset > last + 1 and len(piece):
        _remember(partition, last + 1, piece)
    if piece.next_offset > last or len(piece) >= size_bytes_max or not len(piece):
        return piece
    size_bytes = size_bytes_max
    final = partition.read(last, _ONE_BATCH, end_offset)
    if isinstance(final, LogSlice):
        if len(final) and final.file is piece.file:
            size_bytes = min(size_bytes, final.position + len(final) - piece.position)
        final.release()
    piece.release()
    return partition.read(first, size_bytes, end_offset)


def _remember(partition: Partition, offset: int, batch: LogSlice) -> None:
    """Cache the position of a batch that is leased in parts, so that the next read need not search for it."""
    places = partition.log.places
    behind = places.get(batch.next_offset)
    if behind is not None:
        places.note(offset, behind[0], batch.position)


def cut_out(data: bytes, ranges: Sequence[Range]) -> bytes:
    """Of these batches those from the first range to the last: more may have been read than is needed."""
    begin, end = ranges[0].first, ranges[-1].last
    start = stop = position = 0
    for batch, header in batches_of(data):
        position += len(batch)
        if header.last_offset < begin:
            start = position
        if header.base_offset <= end:
            stop = position
    return data[start:stop]


def below(ranges: Sequence[Range], end_offset: int) -> list[Range]:
    """The parts of the ranges that lie below an offset."""
    return [Range(first, min(last, end_offset - 1)) for first, last in ranges if first < end_offset]


def hidden_in(records: LogSlice | bytes, aborted: Sequence[AbortedTransaction]) -> list[Range]:
    """Which of these offsets are no messages to a reader of committed transactions."""
    data = records.bytes() if isinstance(records, LogSlice) else records
    return [
        Range(header.base_offset, header.last_offset)
        for _, header in batches_of(data)
        if header.is_control or is_aborted(header, aborted)
    ]


def _joined(slices: Sequence[LogSlice]) -> LogSlice | bytes:
    if len(slices) == 1:
        return slices[0]
    data = b"".join(one.bytes() for one in slices)
    for one in slices:
        one.release()
    return data
