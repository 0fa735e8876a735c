"""The metadata of one topic, in the registry and beside the topic's logs on each broker. Pure."""

from __future__ import annotations

from uuid import UUID

import msgspec


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`configs` contains only overrides, as text, under Kafka's names. `owner` is the id of the topic with which this
    one is co-located; a later topic of the same name as that one has a different id.
    `dead_letters_of` is the id of the topic for which the broker created this one as its dead-letter topic; the two are
    deleted together. It is None if a client created the topic, whatever its name.
    `growths` lists the partition counts before each increase."""

    name: str
    id: UUID
    partitions: int
    configs: dict[str, str] = {}
    created_ms: int
    owner: UUID | None = None
    dead_letters_of: UUID | None = None
    growths: tuple[int, ...] = ()

    def partitions_before(self, index: int) -> int:
        """Return the partition count before this partition was added; 0 if the topic was created with it."""
        return max((count for count in self.growths if count <= index), default=0)
