"""Choose the partition of a record.

- A key maps to the same partition as with Kafka's own clients (murmur2), so that producers in several languages can
  share a topic.
- Records without a key stay with one partition until its batch is closed, which makes fewer and fuller batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import iter_unpack

from headrace.runtime.entropy import Entropy

_SHORT_BYTES_MAX = 16
"""Up to this length, hashing in Python is as fast as calling the C function."""
_MIX = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Kafka's default choice: murmur2 without its sign bit, modulo the number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 that Kafka's clients use, as an unsigned number. A key may have megabytes and is hashed on
    the event loop; the compiled library is a hundred times faster."""
    if len(data) > _SHORT_BYTES_MAX and (compiled := _compiled()) is not None:
        return compiled(data, len(data))
    return murmur2_in_python(data)


@cache
def _compiled() -> Callable[[bytes, int], int] | None:
    # Loaded with the first long key, because importing ctypes would slow down every start.
    from ctypes import c_char_p, c_int64, c_uint32

    from headrace.native.library import library

    found = library()
    if found is None:
        return None
    return found.function("headrace_murmur2", c_uint32, c_char_p, c_int64, keeps_lock=True)


def murmur2_in_python(data: bytes) -> int:
    length = len(data)
    whole = length & ~3
    state = _SEED ^ length
    for (word,) in iter_unpack("<I", memoryview(data)[:whole]):
        mixed = word * _MIX & _MASK
        mixed = (mixed ^ (mixed >> 24)) * _MIX & _MASK
        state = (state * _MIX & _MASK) ^ mixed
    if whole < length:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MIX & _MASK
    state = (state ^ (state >> 13)) * _MIX & _MASK
    return state ^ (state >> 15)


class StickyPartitioner:
    """The current partition of records without a key, per topic, until `move_on`."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._current: dict[str, int] = {}

    def choose(self, topic: str, partition_count: int) -> int:
        chosen = self._current.get(topic)
        if chosen is None or chosen >= partition_count:
            chosen = self._current[topic] = self._entropy.integer(0, partition_count - 1)
        return chosen

    def move_on(self, topic: str, partition_count: int) -> int:
        """Change to another partition, if there is one."""
        if partition_count > 1:
            step = self._entropy.integer(1, partition_count - 1)
            self._current[topic] = (self._current[topic] + step) % partition_count
        return self._current[topic]
