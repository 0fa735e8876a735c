"""Whether a gateway's brokers answer: each is asked once a second, by a connection of its own.

So requests of callers need not find out, one after the other, that nobody is there: they are told at once. What is
asked here also tries the brokers whose circuits are open, and closes those of brokers that are back.
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
_LANE = "reach"  # a broker that is slow with its requests must not look as if it were gone


class Reach:
    def __init__(self, cluster: Cluster) -> None:
        self.is_there = False
        """Whether any broker has answered of late."""
        self.found = asyncio.Event()
        """A broker has answered for the first time."""
        self._cluster = cluster
        self._has_told = False  # so that a gateway whose --bootstrap is wrong does not wait in silence

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        is_there = await self._hears_one_of_them()
        if not is_there:
            self._tell(is_there=False)  # now: the next question may take longer
            is_there = await self._hears_anybody()
        self._tell(is_there=is_there)

    def _tell(self, *, is_there: bool) -> None:
        if is_there != self.is_there or not self._has_told:
            level = logging.INFO if is_there else logging.WARNING
            log.log(level, "brokers answer" if is_there else "no broker answers; they are asked again every second")
        self.is_there, self._has_told = is_there, True
        if is_there:
            self.found.set()

    async def _hears_one_of_them(self) -> bool:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._hears(node_id)) for node_id in self._cluster.view.nodes]
        return any(task.result() for task in asked)

    async def _hears_anybody(self) -> bool:
        """Those that were known have perhaps been replaced by others: ask at the addresses of the start."""
        try:
            await self._cluster.refresh([])
        except HeadraceError:
            return False
        self._cluster.distrust()  # only the brokers were asked for, not what they lead
        return True

    async def _hears(self, node_id: int) -> bool:
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        try:
            await self._cluster.call(request, node_id=node_id, timeout_seconds=ANSWER_SECONDS, lane=_LANE)
        except HeadraceError:
            return False
        return True
