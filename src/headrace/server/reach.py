"""Probe the brokers of a gateway once a second, over connections of their own.

With the result, the gateway rejects requests immediately while no broker is reachable, instead of letting each run into
a timeout. The probes also try brokers whose circuit breakers are open, and close those of brokers that are back.
"""

from __future__ import annotations

import asyncio
import logging

from headrace.client.cluster import Cluster
from headrace.model.errors import HeadraceError
from headrace.wire.messages.metadata import MetadataRequest

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
ANSWER_SECONDS = 3.0
_LANE = "reach"  # a separate connection, so that a busy broker does not appear unreachable


class Reach:
    def __init__(self, cluster: Cluster) -> None:
        self.is_there = False
        """Whether any broker responded to the last probe."""
        self.found = asyncio.Event()
        """Set when a broker has responded for the first time."""
        self._cluster = cluster
        self._has_told = False  # so that a wrong --bootstrap is logged at startup

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        is_there = await self._hears_one_of_them()
        if not is_there:
            self._tell(is_there=False)  # before the next probe, which may take longer
            is_there = await self._hears_anybody()
        self._tell(is_there=is_there)

    def _tell(self, *, is_there: bool) -> None:
        if is_there != self.is_there or not self._has_told:
            level = logging.INFO if is_there else logging.WARNING
            log.log(level, "brokers are reachable" if is_there else "no broker is reachable; probing every second")
        self.is_there, self._has_told = is_there, True
        if is_there:
            self.found.set()

    async def _hears_one_of_them(self) -> bool:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._hears(node_id)) for node_id in self._cluster.view.nodes]
        return any(task.result() for task in asked)

    async def _hears_anybody(self) -> bool:
        """Probe the bootstrap addresses, since all known brokers may have been replaced."""
        try:
            await self._cluster.refresh([])
        except HeadraceError:
            return False
        self._cluster.distrust()  # the refresh fetched brokers only, no partition leaders
        return True

    async def _hears(self, node_id: int) -> bool:
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        try:
            await self._cluster.call(request, node_id=node_id, timeout_seconds=ANSWER_SECONDS, lane=_LANE)
        except HeadraceError:
            return False
        return True
