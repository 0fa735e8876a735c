"""Which record is the newest of its key: what a pass of compaction must remember, in bounded memory.

A key is known by 16 bytes of its BLAKE2b hash. A dictionary would take 150 bytes for each; here hash and offset lie
packed in buckets of some sixteen entries, which are searched by `bytes.find`: 30 bytes for each, and about as fast.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

_HASH_BYTES = 16
_OFFSET = Struct(">q")
_ENTRY_BYTES = _HASH_BYTES + _OFFSET.size
_ENTRIES_PER_BUCKET = 16
# An entry with its share of what a bucket costs besides: the object, the list's pointer, room to grow.
_ENTRY_COST_BYTES = 36

NO_OFFSET = -1


class OffsetMap:
    def __init__(self, size_bytes_max: int) -> None:
        self.capacity = max(size_bytes_max // _ENTRY_COST_BYTES, 1)
        buckets = 1 << max(self.capacity // _ENTRIES_PER_BUCKET, 1).bit_length() - 1
        self._mask = buckets - 1
        self._buckets: list[bytearray | None] = [None] * buckets
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def has_room(self, count: int) -> bool:
        """Whether so many new keys fit; an empty map takes any number, or a pass would never get on."""
        return self._count + count <= self.capacity or not self._count

    def put(self, key: bytes, offset: int) -> None:
        """This record is newer than all of the same key that were put before."""
        digest = blake2b(key, digest_size=_HASH_BYTES).digest()
        at = hash(digest) & self._mask
        bucket = self._buckets[at]
        if bucket is None:
            self._buckets[at] = bytearray(digest + _OFFSET.pack(offset))
            self._count += 1
            return
        found = bucket.find(digest)
        if found > 0 and found % _ENTRY_BYTES:
            found = _find_behind(bucket, digest, found)
        if found < 0:
            bucket += digest + _OFFSET.pack(offset)
            self._count += 1
        else:
            _OFFSET.pack_into(bucket, found + _HASH_BYTES, offset)

    def newest(self, key: bytes) -> int:
        """The offset that was put last for this key, or NO_OFFSET."""
        digest = blake2b(key, digest_size=_HASH_BYTES).digest()
        bucket = self._buckets[hash(digest) & self._mask]
        if bucket is None:
            return NO_OFFSET
        found = bucket.find(digest)
        if found > 0 and found % _ENTRY_BYTES:
            found = _find_behind(bucket, digest, found)
        if found < 0:
            return NO_OFFSET
        offset: int = _OFFSET.unpack_from(bucket, found + _HASH_BYTES)[0]
        return offset


def _find_behind(bucket: bytearray, digest: bytes, found: int) -> int:
    """What was found lies across two entries, whose bytes happen to look like it."""
    while found > 0 and found % _ENTRY_BYTES:
        found = bucket.find(digest, found + 1)
    return found
