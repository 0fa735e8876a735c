"""The open and the aborted transactions of one partition. Pure.

A transaction is open from its first batch to its marker, and unstable until the marker is committed. `read_committed`
consumers read up to the first unstable offset, which is the last stable offset. Aborted batches stay in the log; these
consumers get a list of them with the data and skip them.

- Open transactions are in the order of their first offsets, aborted ones in the order of their markers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from headrace.model.errors import CorruptMessage

# Flat, because a list of tuples takes five times the memory: producer id, first offset, offset of the marker, and the
# last stable offset after the marker, behind which all later transactions begin.
_VALUES = 4
_FIRST, _LAST, _STABLE = 1, 2, 3
_HEAD = Struct(">I")


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # of the marker


class PartitionTransactions:
    __slots__ = ("_aborted", "_ended", "_open")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._ended: deque[tuple[int, int]] = deque()  # offset of the marker, first offset; marker not committed yet
        self._aborted: array[int] = array("q")

    @property
    def first_unstable(self) -> int | None:
        """The first offset of the oldest transaction without a committed outcome."""
        first = next(iter(self._open.values()), None)
        for _, ended in self._ended:
            if first is None or ended < first:
                first = ended
        return first

    def first_offset(self, producer_id: int) -> int:
        """Return the first offset of the producer's open transaction, or -1."""
        return self._open.get(producer_id, -1)

    def begin(self, producer_id: int, first_offset: int) -> None:
        assert producer_id not in self._open
        self._open[producer_id] = first_offset

    def end(self, producer_id: int, marker_offset: int, *, is_commit: bool) -> None:
        """Record the marker of the producer. Without an open transaction it has no effect."""
        first_offset = self._open.pop(producer_id, None)
        if first_offset is None:
            return
        self._ended.append((marker_offset, first_offset))
        if not is_commit:
            stable = next(iter(self._open.values()), marker_offset + 1)
            self._aborted.extend((producer_id, first_offset, marker_offset, stable))

    def committed(self, high_watermark: int) -> None:
        """Everything below the high watermark is committed, so the markers there are final."""
        ended = self._ended
        while ended and ended[0][0] < high_watermark:
            ended.popleft()

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap these offsets, in the order of their first offsets."""
        values = self._aborted
        found = []
        for at in range(self._first_ended_after(start_offset), len(values), _VALUES):
            if values[at + _FIRST] < end_offset:
                found.append(AbortedTransaction(values[at], values[at + _FIRST], values[at + _LAST]))
            if values[at + _STABLE] >= end_offset:
                break
        return sorted(found, key=lambda one: one.first_offset)

    def trim(self, start_offset: int) -> None:
        """The log starts at this offset now: remove transactions that were aborted before."""
        del self._aborted[: self._first_ended_after(start_offset)]

    def _first_ended_after(self, offset: int) -> int:
        """Return the index of the first aborted transaction whose marker is at this offset or after it."""
        values = self._aborted
        index = bisect_left(range(len(values) // _VALUES), offset, key=lambda at: values[at * _VALUES + _LAST])
        return index * _VALUES

    def forget(self, markers: Iterable[int]) -> None:
        """Compaction has removed the transactions with markers at these offsets, with all their records."""
        gone = set(markers)
        values = self._aborted
        kept: array[int] = array("q")
        for at in range(0, len(values), _VALUES):
            if values[at + _LAST] not in gone:
                kept.extend(values[at : at + _VALUES])
        self._aborted = kept

    def snapshot(self) -> bytes:
        """Serialize the aborted transactions; the open ones are part of the producers' state."""
        copy = array("q", self._aborted)
        copy.byteswap()
        return _HEAD.pack(len(copy)) + copy.tobytes()

    def restore_aborted(self, data: bytes) -> None:
        """The reverse of `snapshot`."""
        values: array[int] = array("q")
        if len(data) < _HEAD.size or len(data) != _HEAD.size + 8 * _HEAD.unpack_from(data)[0]:
            raise CorruptMessage(f"a snapshot of aborted transactions has {len(data)} bytes")
        values.frombytes(data[_HEAD.size :])
        values.byteswap()
        self._aborted = values
