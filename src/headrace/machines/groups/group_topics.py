"""The topics to which the members of a group subscribe. Pure.

Members of protocol type "consumer" send their subscription as metadata: an i16 version, then an array of topic names.
The rest differs by version and client, and not all clients follow their version. So only this common beginning is read,
and unreadable metadata is not an error: the names only determine which committed offsets are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

from headrace.model.errors import InvalidRegularExpression
from headrace.model.names import compiled

CONSUMER_PROTOCOL_TYPE = "consumer"

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return None if the bytes are not a subscription."""
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or count < 0:
            return None
        position = _HEAD.size
        topics = set()
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if not 0 <= length <= len(metadata) - position:
                return None
            topics.add(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


class TopicImage(NamedTuple):
    id: UUID
    partitions: int


class TopicsImage:
    """All topics at one point in time. Compared by identity, which is fast."""

    def __init__(self, topics: Mapping[str, TopicImage]) -> None:
        self.topics = topics

    @cached_property
    def names(self) -> dict[UUID, str]:
        return {shape.id: name for name, shape in self.topics.items()}

    def matching(self, regex: str) -> frozenset[str]:
        """Return the topics whose whole name matches, including internal ones. An invalid expression, which a log
        written by Kafka may contain, matches none."""
        try:
            match = compiled(regex).fullmatch
        except InvalidRegularExpression:
            return frozenset()
        return frozenset(name for name in self.topics if match(name))

    def hash_of(self, names: Iterable[str]) -> int:
        """Return a hash of the existing topics and their sizes, which is the same after a restart."""
        digest = blake2b(digest_size=8)
        for name in sorted(self.topics.keys() & names):
            topic_id, partitions = self.topics[name]
            digest.update(f"{name} {topic_id} {partitions}\n".encode())
        return int.from_bytes(digest.digest(), "big", signed=True)

    def sizes(self, names: Iterable[str]) -> dict[UUID, int]:
        """Return the partition counts of the existing topics."""
        shapes = (self.topics[name] for name in sorted(self.topics.keys() & names))
        return {shape.id: shape.partitions for shape in shapes}
