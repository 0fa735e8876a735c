"""Committed offsets that are of no use any more: their tombstones are appended, and they are gone in the same step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from headrace.broker.group_records import offset_record
from headrace.broker.offsets_log import OffsetsLead, durable
from headrace.broker.state_log import KeyValue
from headrace.machines.offsets import GroupOffsets, OffsetForgotten
from headrace.model.errors import HeadraceError

log = logging.getLogger(__name__)


class ForgottenOffsets:
    def __init__(self, offsets: GroupOffsets, lead: OffsetsLead) -> None:
        self._offsets = offsets
        self._lead = lead

    async def forget(self, events: Sequence[OffsetForgotten]) -> None:
        """Return when it is durable."""
        for wait in self._append(events):
            await durable(wait)

    def try_to_forget(self, events: Sequence[OffsetForgotten]) -> None:
        """Nobody waits for this: what is not forgotten now is forgotten another time."""
        try:
            for wait in self._append(events):
                wait.add_done_callback(asyncio.Future.exception)
        except HeadraceError as error:
            log.warning("removing expired offsets failed error=%s", error)

    def forget_group(self, group_id: str, ends: Sequence[KeyValue]) -> asyncio.Future[None] | None:
        """All that a group has committed goes together with the group; `ends` are its own tombstones."""
        gone = self._offsets.forget_group(group_id)
        wait = self._lead.append(group_id, [*map(offset_record, gone), *ends])
        for event in gone:
            self._offsets.apply(event)
        return wait

    def _append(self, events: Sequence[OffsetForgotten]) -> list[asyncio.Future[None]]:
        by_group: dict[str, list[OffsetForgotten]] = {}
        for event in events:
            by_group.setdefault(event.group_id, []).append(event)
        waits = []
        for group_id, gone in by_group.items():
            wait = self._lead.append(group_id, [offset_record(event) for event in gone])
            if wait is not None:
                waits.append(wait)
            for event in gone:
                self._offsets.apply(event)
        return waits
