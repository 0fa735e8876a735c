"""One topic as the registry keeps it, and as each broker keeps it beside the topic's logs. Pure."""

from __future__ import annotations

from uuid import UUID

import msgspec


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`configs` are overrides only, as text, under Kafka's names. `owner` is the id of the topic with which this one is
    co-located: a namesake of that topic, made after it was deleted, has nothing to do with it.
    `dead_letters_of` is the id of the topic for which the broker created this one as its dead-letter topic; the two are
    deleted together. None of a topic that a client created, whatever its name.
    `growths` are the numbers of partitions that it had each time before some were added."""

    name: str
    id: UUID
    partitions: int
    configs: dict[str, str] = {}
    created_ms: int
    owner: UUID | None = None
    dead_letters_of: UUID | None = None
    growths: tuple[int, ...] = ()

    def partitions_before(self, index: int) -> int:
        """How many partitions there were when this one was added; 0 if the topic was created with it."""
        return max((count for count in self.growths if count <= index), default=0)
