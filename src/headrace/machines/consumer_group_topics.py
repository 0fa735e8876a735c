"""The topics as a group sees them: which ones a subscription means, and whether they have changed.

A regular expression must match a whole name, that of an internal topic too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

from headrace.model.errors import InvalidRegularExpression
from headrace.model.patterns import compiled


class TopicShape(NamedTuple):
    id: UUID
    partitions: int


class TopicView:
    """All topics at one moment. Two views are the same only if they are one object: that is quickly asked."""

    def __init__(self, topics: Mapping[str, TopicShape]) -> None:
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
