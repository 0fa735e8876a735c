"""Changes of single partitions that an administrator asks for. Any broker carries them out, by compare-and-set.

What this broker believes of the others may be out of date: that can make a change useless, but never unsafe, because
the decision is made anew on the record that it replaces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.broker.catalogue import Catalogue, Topic
from headrace.model.errors import HeadraceError, RequestTimedOut, UnknownTopicOrPartition
from headrace.model.partition_record import PartitionRecord
from headrace.registry.partitions import PartitionRecords, partition_key
from headrace.runtime.eager import in_task

Decide = Callable[[Topic, PartitionRecord], PartitionRecord | None]
"""The new record, None if it is well as it is, or a refusal is raised."""

Outcome = tuple[int, str | None]
"""Error code and message, as answers carry them."""


class PartitionChanges:
    def __init__(self, catalogue: Catalogue, records: PartitionRecords) -> None:
        self._catalogue = catalogue
        self._records = records

    async def attempt(self, topic: str, index: int, decide: Decide, deadline: float) -> Outcome:
        """Change one partition before the loop's time is `deadline`."""
        await in_task()
        try:
            async with asyncio.timeout_at(deadline):
                await self._change(topic, index, decide)
        except TimeoutError:
            return RequestTimedOut.code, RequestTimedOut().message
        except HeadraceError as error:
            return error.code, error.message
        return 0, None

    async def _change(self, name: str, index: int, decide: Decide) -> None:
        topic = self._catalogue.topic(name)
        seen: list[PartitionRecord] = []

        def decided(record: PartitionRecord) -> PartitionRecord | None:
            seen.append(record)
            changed = decide(topic, record)
            return None if changed == record else changed

        changed = None
        if 0 <= index < topic.partition_count:
            changed = await self._records.change(topic.id, index, decided)
        if not seen:  # also when the topic was deleted meanwhile
            raise UnknownTopicOrPartition(f"partition {name}-{index} does not exist")
        if changed is not None:
            # Who asks here again, to see how far it is, must not find it as it was before.
            await self._catalogue.mirror.read([partition_key(topic.id, index)])


def deadline_after(timeout_ms: int) -> float:
    return asyncio.get_running_loop().time() + max(timeout_ms, 0) / 1000
