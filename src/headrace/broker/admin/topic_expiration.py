"""Delete idle topics with `expire.after.idle.ms`.

Such topics belong to clients that may disappear without notice, for example reply topics. The leader of the topic's
single partition measures the idle time from the start of its leadership or the last write, so a restart may extend the
lifetime of the topic, but never shorten it. It deletes nothing while its registry session is in doubt.

After a pause of the process (SIGSTOP, a long stall) the measurement restarts: the session may have expired during the
pause, and another leader may have accepted writes before this broker notices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from uuid import UUID

from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import HeadraceError
from headrace.model.names import dead_letter_topic
from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
_PAUSE_SECONDS = 5.0  # without a check for this long, the process was paused


class TopicExpiration:
    def __init__(self, catalogue: Catalogue, clock: Clock, session_valid: Callable[[], bool]) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self._session_valid = session_valid
        self._seen: dict[UUID, tuple[int, float]] = {}  # the log end offset, and the time since which it is unchanged
        self._looked_at = float("-inf")

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            for topic in list(self._idle()):
                log.info("deleting an idle topic (expire.after.idle.ms) topic=%s", topic.name)
                try:
                    await self._catalogue.delete(topic.name)
                except HeadraceError as error:
                    log.warning("deleting an idle topic failed topic=%s error=%s", topic.name, error)

    def _idle(self) -> Iterator[Topic]:
        """Yield expired topics, and update the idle times of the others."""
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
                continue  # its dead-letter topic would be deleted as well, although it may still be needed
            end_offset = topic.led[0].log.end_offset
            seen_offset, since = before.get(topic.id, (None, now))
            if seen_offset != end_offset:
                since = now
            self._seen[topic.id] = end_offset, since
            if now - since >= limit_ms / 1000:
                yield topic
