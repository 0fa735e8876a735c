"""Collect the metrics of a broker for `/metrics`, and the checks for `/readyz`.

Components keep their own counters; a scrape only reads them. It runs in short steps that yield to the event loop, and
at most once a second, regardless of the number of clients.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.broker import Broker
from headrace.protocols.kafka.listener import KafkaServer
from headrace.runtime.clock import Clock
from headrace.server.event_loop import LoopLag

if TYPE_CHECKING:
    from headrace.server.http_server import HttpServer
    from headrace.server.metrics.queues import OldestMessages

_FRESH_SECONDS = 1.0


class BrokerMetrics:
    """`http` is set after the HTTP server has been created, which serves these pages."""

    def __init__(self, broker: Broker, kafka_server: KafkaServer, clock: Clock) -> None:
        self.http: HttpServer | None = None
        self.loop_lag = LoopLag(clock)
        self._broker = broker
        self._kafka_server = kafka_server
        self._clock = clock
        self._started = clock.monotonic()
        self._page = b""
        self._scraped_at: float | None = None
        self._scraping = asyncio.Lock()
        self._oldest: OldestMessages | None = None

    def checks(self) -> dict[str, str | None]:
        store = self._broker.store
        failed = [log for log in store.logs.values() if log.failed is not None or log.quarantined is not None]
        return {
            "groups": None if self._broker.coordinator.is_loaded else "the group coordinator is still loading",
            "disk": "the disk is nearly full; writes are rejected" if store.space.exhausted else None,
            "logs": f"{len(failed)} partitions are out of service; see the log" if failed else None,
            "registry": None if self._broker.cluster.membership.session_valid else "the registry is not reachable",
        }

    async def page(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        async with self._scraping:
            if self._scraped_at is None or self._clock.monotonic() - self._scraped_at >= _FRESH_SECONDS:
                self._page = await self._scrape()
                self._scraped_at = self._clock.monotonic()
            return self._page

    async def _scrape(self) -> bytes:
        # Imported on the first scrape: keeps startup fast.
        from headrace.runtime.tasks import CooperativeYield
        from headrace.server.metrics.exposition import Exposition
        from headrace.server.metrics.groups import add_groups
        from headrace.server.metrics.process import add_http, add_kafka, add_process, add_pushes, add_storage
        from headrace.server.metrics.queues import OldestMessages, add_delays, add_queues, collect_queue_stats
        from headrace.server.metrics.topics import add_cluster, add_topics

        out, broker, yield_turn = Exposition(), self._broker, CooperativeYield(self._clock)
        add_process(out, self._clock, self._started, self.loop_lag)
        add_kafka(out, broker.handlers, self._kafka_server)
        if self.http is not None:
            add_http(out, self.http.listener)
            add_pushes(out, self.http.pushes())
        add_cluster(out, broker)
        await add_topics(out, broker, yield_turn)
        self._oldest = self._oldest or OldestMessages()
        queues = await collect_queue_stats(broker, self._oldest, yield_turn)
        await add_queues(out, queues, self._clock.now_ms(), yield_turn)
        await add_groups(out, broker, queues, yield_turn)
        await add_delays(out, broker, self._clock, yield_turn)
        await add_storage(out, broker, yield_turn)
        pieces = []
        for piece in out.pieces():
            await yield_turn()
            pieces.append(piece)
        return b"".join(pieces)
