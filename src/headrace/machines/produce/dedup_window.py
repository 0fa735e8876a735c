"""The recent dedup ids of a partition and the offsets of their messages. Pure.

- An id is known for `window_ms` after it was added. Time never goes back here, even if the clock does, so ids expire in
  the order in which they were added.
- Ids are stored as 128-bit hashes. A collision would lose a message, but is too improbable to matter.
- Ids are packed in a few slices, one after the other in time, and a slice is dropped when its last id has expired. This
  takes 45 bytes per id, and half as much again for expired ones; a dictionary would take 150. A lookup searches all
  slices: three or four, or a few more while the window fills for the first time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct

_HASH_BYTES = 16
_ENTRY = Struct(">16sqq")  # hash, offset, time
_ENTRIES_PER_BUCKET = 16
_SLICE_MIN = 1024
_SLICE_SHARE = 2  # the capacity of a new slice, as a fraction of the present ids
WITHIN_BATCH = -1


def hash_dedup_id(dedup_id: bytes) -> bytes:
    return blake2b(dedup_id, digest_size=_HASH_BYTES).digest()


class DedupWindow:
    """`window_ms` may change at any time. The length includes ids that have expired but are not dropped yet."""

    __slots__ = ("_newest_ms", "_slices", "window_ms")

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._slices: deque[_IdSlice] = deque()
        self._newest_ms = 0

    def __len__(self) -> int:
        return sum(one.count for one in self._slices)

    def find(self, ids: Sequence[bytes | None], now_ms: int) -> list[int | None]:
        """Return for each message of a batch: None if it is new or has no id, the offset of the known message with its
        id, or `WITHIN_BATCH` if that is an earlier message of the same batch."""
        self.expire(now_ms)
        found: list[int | None] = []
        seen: set[bytes] = set()
        for dedup_id in ids:
            offset = None if dedup_id is None else self._find(dedup_id, now_ms)
            if dedup_id is not None and offset is None:
                if dedup_id in seen:
                    offset = WITHIN_BATCH
                seen.add(dedup_id)
            found.append(offset)
        return found

    def add(self, dedup_id: bytes, offset: int, now_ms: int) -> None:
        self._newest_ms = max(self._newest_ms, now_ms)
        if not self._slices or self._slices[-1].count >= self._slices[-1].capacity:
            self._slices.append(_IdSlice(max(len(self) // _SLICE_SHARE, _SLICE_MIN)))
        self._slices[-1].put(dedup_id, offset, self._newest_ms)

    def expire(self, now_ms: int) -> None:
        while self._slices and self._slices[0].newest_ms <= now_ms - self.window_ms:
            self._slices.popleft()

    def _find(self, dedup_id: bytes, now_ms: int) -> int | None:
        for one in reversed(self._slices):
            found = one.find(dedup_id)
            if found is not None:
                offset, at_ms = found
                return offset if at_ms > now_ms - self.window_ms else None
        return None


class _IdSlice:
    """Up to `capacity` ids, in the order in which they were added."""

    __slots__ = ("_buckets", "_mask", "capacity", "count", "newest_ms")

    def __init__(self, capacity: int) -> None:
        buckets = 1 << (capacity // _ENTRIES_PER_BUCKET).bit_length()
        self.capacity = capacity
        self.count = 0
        self.newest_ms = 0
        self._mask = buckets - 1
        self._buckets: list[bytearray | None] = [None] * buckets

    def put(self, dedup_id: bytes, offset: int, at_ms: int) -> None:
        at = hash(dedup_id) & self._mask
        entry = _ENTRY.pack(dedup_id, offset, at_ms)
        bucket = self._buckets[at]
        if bucket is None:
            self._buckets[at] = bytearray(entry)
        else:
            bucket += entry
        self.count += 1
        self.newest_ms = at_ms

    def find(self, dedup_id: bytes) -> tuple[int, int] | None:
        """Return the last offset and time that were added for the id."""
        bucket = self._buckets[hash(dedup_id) & self._mask]
        if bucket is None:
            return None
        found = bucket.rfind(dedup_id)
        while found > 0 and found % _ENTRY.size:
            # The match spans two entries by coincidence.
            found = bucket.rfind(dedup_id, 0, found + _HASH_BYTES - 1)
        if found < 0:
            return None
        _, offset, at_ms = _ENTRY.unpack_from(bucket, found)
        return offset, at_ms
