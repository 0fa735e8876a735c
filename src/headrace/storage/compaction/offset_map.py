"""Map each key to the offset of its newest record, in bounded memory, during a pass of compaction.

A key is identified by 16 bytes of its BLAKE2b hash. A dictionary would take 150 bytes per key. Here, hash and offset
are packed in buckets of about sixteen entries, which are searched with `bytes.find`: 30 bytes per key, and about as
fast.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

_HASH_BYTES = 16
_OFFSET = Struct(">q")
_ENTRY_BYTES = _HASH_BYTES + _OFFSET.size
_ENTRIES_PER_BUCKET = 16
# An entry with its share of the overhead of a bucket: the object, its pointer in the list, spare capacity.
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
        """Whether this many new keys fit. An empty map accepts any number; otherwise a pass would make no progress."""
        return self._count + count <= self.capacity or not self._count

    def put(self, key: bytes, offset: int) -> None:
        """Set the newest offset of a key; records must be put in the order of their offsets."""
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
    """Continue the search after a match that spans two entries."""
    while found > 0 and found % _ENTRY_BYTES:
        found = bucket.find(digest, found + 1)
    return found
