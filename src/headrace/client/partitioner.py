"""Which partition a record goes to.

A key always goes to the same partition as with Kafka's own clients (murmur2), so that producers in several
languages may share a topic. Records without a key stay with one partition until its batch is closed: fewer,
fuller batches.
"""

from __future__ import annotations

from headrace.runtime.entropy import Entropy

_MIX = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Kafka's default choice: murmur2 without its sign bit, modulo the number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 that Kafka's clients use, as an unsigned number."""
    length = len(data)
    whole = length & ~3
    state = _SEED ^ length
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MIX & _MASK
        word = (word ^ (word >> 24)) * _MIX & _MASK
        state = (state * _MIX & _MASK) ^ word
    if whole < length:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MIX & _MASK
    state = (state ^ (state >> 13)) * _MIX & _MASK
    return state ^ (state >> 15)


class StickyPartitioner:
    """The partition that records without a key go to, per topic, until `move_on`."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._current: dict[str, int] = {}

    def choose(self, topic: str, partition_count: int) -> int:
        chosen = self._current.get(topic)
        if chosen is None or chosen >= partition_count:
            chosen = self._current[topic] = self._entropy.integer(0, partition_count - 1)
        return chosen

    def move_on(self, topic: str, partition_count: int) -> int:
        """The batch of the current partition is closed: go on with another partition, if there is one."""
        if partition_count > 1:
            step = self._entropy.integer(1, partition_count - 1)
            self._current[topic] = (self._current[topic] + step) % partition_count
        return self._current[topic]
