"""The topics of a group: those that members subscribe to, as they are now."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

from headrace.model.errors import InvalidRegularExpression
from headrace.model.names import compiled

# The topics in the metadata of a consumer-group member.
#
# Members of protocol type "consumer" send their subscription as metadata: i16 version, then an array of topic
# names; what follows differs by version and by client, and not all clients write it as the version says. So only
# the common beginning is read, not the whole message (`wire.consumer_protocol`), and metadata that cannot be
# read is no error: the names only tell which committed offsets are still of use.


CONSUMER_PROTOCOL_TYPE = "consumer"

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """None when the bytes are not a subscription."""
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


# The topics as a group sees them: which ones a subscription means, and whether they have changed.
#
# A regular expression must match a whole name, that of an internal topic too.


class TopicImage(NamedTuple):
    id: UUID
    partitions: int


class TopicsImage:
    """All topics at one moment. Two views are the same only if they are one object: that is quickly asked."""

    def __init__(self, topics: Mapping[str, TopicImage]) -> None:
        self.topics = topics

    @cached_property
    def names(self) -> dict[UUID, str]:
        return {shape.id: name for name, shape in self.topics.items()}

    def matching(self, regex: str) -> frozenset[str]:
        """Nothing matches what we cannot use; a log that Kafka wrote may have such."""
        try:
            match = compiled(regex).fullmatch
        except InvalidRegularExpression:
            return frozenset()
        return frozenset(name for name in self.topics if match(name))

    def hash_of(self, names: Iterable[str]) -> int:
        """The same for the same topics of the same sizes, over restarts too; those that do not exist do not count."""
        digest = blake2b(digest_size=8)
        for name in sorted(self.topics.keys() & names):
            topic_id, partitions = self.topics[name]
            digest.update(f"{name} {topic_id} {partitions}\n".encode())
        return int.from_bytes(digest.digest(), "big", signed=True)

    def sizes(self, names: Iterable[str]) -> dict[UUID, int]:
        """The partitions of those of the topics that exist."""
        shapes = (self.topics[name] for name in sorted(self.topics.keys() & names))
        return {shape.id: shape.partitions for shape in shapes}
