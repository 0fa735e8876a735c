"""Topics that end by themselves: with `expire.after.idle.ms`, one to which nothing was written for so long is deleted.

They are those of clients that may go without a word, such as the topics of replies. Who leads the only partition of
such a topic counts from when it began to lead, or saw something written, so a restart may give the topic more time,
never less; and it deletes nothing while it is not sure to be one of the cluster.

After a pause of the process (SIGSTOP, a long stall) the count begins anew: the session may have ended in the pause, and
another broker may have led the topic and taken writes, before this one hears of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple
from uuid import UUID

from headrace.broker.catalogue import Catalogue
from headrace.broker.topic import Topic
from headrace.model.errors import HeadraceError
from headrace.model.names import dead_letter_topic
from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_PAUSE_SECONDS = 5.0  # no look for so long: the process was paused


class _Seen(NamedTuple):
    """Where the log ended, and since when."""

    end_offset: int
    since: float


class TopicExpiry:
    def __init__(self, catalogue: Catalogue, clock: Clock, session_valid: Callable[[], bool]) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self._session_valid = session_valid
        self._seen: dict[UUID, _Seen] = {}
        self._looked_at = float("-inf")

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for topic in list(self._idle()):
                log.info("deleting an idle topic (expire.after.idle.ms) topic=%s", topic.name)
                try:
                    await self._catalogue.delete(topic.name)
                except HeadraceError as error:
                    log.warning("deleting an idle topic failed topic=%s error=%s", topic.name, error)

    def _idle(self) -> Iterator[Topic]:
        """Topics whose time is up; notes what is seen of the others."""
        now = self._clock.monotonic()
        before, self._seen = self._seen, {}
        was_paused, self._looked_at = now - self._looked_at > _PAUSE_SECONDS, now
        if was_paused:
            before = {}
        if not self._session_valid():
            return
        for topic in self._catalogue:
            limit_ms = topic.config.expire_after_idle_ms
            if not limit_ms or topic.partition_count != 1 or 0 not in topic.led or topic.is_internal:
                continue
            if self._catalogue.find(dead_letter_topic(topic.name)) is not None:
                continue  # it would be deleted as well, with what somebody may still want to look at
            end_offset = topic.led[0].log.end_offset
            seen = before.get(topic.id)
            if seen is None or seen.end_offset != end_offset:
                seen = _Seen(end_offset, now)
            self._seen[topic.id] = seen
            if now - seen.since >= limit_ms / 1000:
                yield topic
