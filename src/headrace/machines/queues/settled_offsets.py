"""The set of settled offsets: all below the ack floor, and above it those in a 64-bit roaring bitmap. Pure.

- The floor is the first offset that is not settled, so the bitmap never contains the floor or a lower offset.
- The size depends on the disorder of settlements, not on the backlog. No operation iterates over single offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.machines.queues.subscription_values import Range

if TYPE_CHECKING:
    from pyroaring import BitMap64

_CONTAINER = 1 << 16  # offsets per container of the bitmap; a container has at most 8 KiB
_STEP = 16  # the first step of the exponential search: runs of settled offsets are short or very long


def new_bitmap() -> BitMap64:
    # Imported by the first subscription, because the import would add milliseconds to the start of a broker.
    from pyroaring import BitMap64

    return BitMap64()


def first_absent(bitmap: BitMap64, offset: int) -> int:
    """Return the first offset at or after `offset` that is not in the bitmap."""
    if offset not in bitmap:
        return offset
    step = _STEP
    while bitmap.contains_range(offset, offset + step):
        offset += step
        step *= 2
    end = offset + step  # all before `offset` are present, and one before `end` is absent
    while end - offset > 1:
        middle = (offset + end) // 2
        if bitmap.contains_range(offset, middle):
            offset = middle
        else:
            end = middle
    return offset


def next_present(bitmap: BitMap64, offset: int, end: int) -> int:
    """Return the first offset at or after `offset` that is in the bitmap; `end` if there is none below `end`."""
    if not bitmap:
        return end
    try:
        return min(bitmap.next_set_bit(offset), end)
    except ValueError:
        return end


def present_ranges(bitmap: BitMap64, first: int, end: int) -> Iterator[Range]:
    """Return the ranges from `first` to below `end` that are in the bitmap."""
    while (first := next_present(bitmap, first, end)) < end:
        stop = min(first_absent(bitmap, first), end)
        yield Range(first, stop - 1)
        first = stop


class SettledOffsets:
    """The settled offsets of one subscription in one partition. All are below `end`."""

    __slots__ = ("_above", "end", "floor")

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self.end = floor
        self._above = new_bitmap()

    def __len__(self) -> int:
        """Return the number of settled offsets above the floor."""
        return len(self._above)

    def __contains__(self, offset: int) -> bool:
        return offset < self.floor or offset in self._above

    def add(self, first: int, last: int) -> None:
        if last >= self.end:
            self.end = last + 1
        if first > self.floor:
            self._above.add_range(first, last + 1)
        elif last >= self.floor:
            floor = last + 1
            if self._above:
                floor = first_absent(self._above, floor)
                self._above.remove_range(self.floor, floor)
            self.floor = floor

    def remove(self, offset: int) -> None:
        """Make one offset unsettled again. The floor moves back to an offset below it."""
        if offset < self.floor:
            self._above.add_range(offset + 1, self.floor)
            self.floor = offset
        else:
            self._above.discard(offset)

    def next_unsettled(self, offset: int) -> int:
        """Return the first unsettled offset at or after an offset."""
        return max(self.floor, first_absent(self._above, offset))

    def unsettled(self, first: int, end: int) -> Iterator[Range]:
        """Return the unsettled ranges from `first` to below `end`; the set must not change during the iteration."""
        first = max(first, self.floor)
        while first < end and (first := first_absent(self._above, first)) < end:
            stop = next_present(self._above, first, end)
            yield Range(first, stop - 1)
            first = stop

    def count_unsettled(self, end: int) -> int:
        return max(0, end - self.floor - self._above.range_cardinality(self.floor, max(end, self.floor)))

    def slices(self, bytes_max: int) -> Iterator[bytes]:
        """Serialize the bitmap in pieces of at most `bytes_max` bytes (or of one container, which is 8 KiB)."""
        if self._above:
            yield from _bitmap_slices(self._above, self._above.min(), self._above.max() + 1, bytes_max)

    def add_slice(self, data: bytes) -> None:
        from pyroaring import BitMap64

        self._above |= BitMap64.deserialize(data)
        self.end = max(self.end, self._above.max() + 1)


def _bitmap_slices(bitmap: BitMap64, first: int, end: int, bytes_max: int) -> Iterator[bytes]:
    """Split in halves until they fit, at container boundaries, so that no container is stored twice."""
    piece = new_bitmap()
    piece.add_range(first, end)
    piece &= bitmap
    if not piece:
        return
    piece.run_optimize()
    data = piece.serialize()
    middle = (first + end) // 2 // _CONTAINER * _CONTAINER
    if len(data) <= bytes_max or not first < middle < end:
        yield data
        return
    yield from _bitmap_slices(piece, first, middle, bytes_max)
    yield from _bitmap_slices(piece, middle, end, bytes_max)
