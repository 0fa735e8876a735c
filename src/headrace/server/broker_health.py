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

CHECK_SECONDS = 1.0
ANSWER_SECONDS = 3.0
_CONNECTION_KEY = "reach"  # a separate connection, so that a busy broker does not appear unreachable


class BrokerHealth:
    def __init__(self, cluster: Cluster) -> None:
        self.is_there = False
        """Whether any broker responded to the last probe."""
        self.found = asyncio.Event()
        """Set when a broker has responded for the first time."""
        self._cluster = cluster
        self._has_logged = False  # so that a wrong --bootstrap is logged at startup

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(CHECK_SECONDS)

    async def look(self) -> None:
        is_there = await self._any_known_broker_responds()
        if not is_there:
            self._tell(is_there=False)  # before the next probe, which may take longer
            is_there = await self._any_bootstrap_responds()
        self._tell(is_there=is_there)

    def _tell(self, *, is_there: bool) -> None:
        if is_there != self.is_there or not self._has_logged:
            level = logging.INFO if is_there else logging.WARNING
            log.log(level, "brokers are reachable" if is_there else "no broker is reachable; probing every second")
        self.is_there, self._has_logged = is_there, True
        if is_there:
            self.found.set()

    async def _any_known_broker_responds(self) -> bool:
        async with asyncio.TaskGroup() as group:
            requested = [group.create_task(self._broker_responds(node_id)) for node_id in self._cluster.view.nodes]
        return any(task.result() for task in requested)

    async def _any_bootstrap_responds(self) -> bool:
        """Probe the bootstrap addresses, since all known brokers may have been replaced."""
        try:
            await self._cluster.refresh([])
        except HeadraceError:
            return False
        self._cluster.invalidate_metadata()  # the refresh fetched brokers only, no partition leaders
        return True

    async def _broker_responds(self, node_id: int) -> bool:
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        try:
            await self._cluster.call(
                request, node_id=node_id, timeout_seconds=ANSWER_SECONDS, connection_key=_CONNECTION_KEY
            )
        except HeadraceError:
            return False
        return True
