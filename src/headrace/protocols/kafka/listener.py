"""The Kafka listener: accept connections within limits, and close idle and stalled ones.

All connections share one scratch buffer and one byte budget, because everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import msgspec

from headrace.broker.handlers import RequestHandlers
from headrace.model.errors import HeadraceError
from headrace.protocols.kafka.byte_budget import ByteBudget
from headrace.protocols.kafka.connection import Connection, RunningRequest
from headrace.runtime.clock import Clock
from headrace.runtime.network import ByteStream, Listener, Network

log = logging.getLogger(__name__)

_SCRATCH_BYTES = 256 << 10
_SWEEP_SECONDS = 1.0
_ERRORS_LOGGED_PER_SWEEP = 5  # so that a flood of malformed requests does not flood the log


class ListenerLimits(msgspec.Struct, frozen=True):
    """The limits of a listener, in total and per client."""

    request_bytes_max: int = 104_857_600
    budget_bytes: int = 256 << 20
    connections_max: int = 20_000
    connections_per_host_max: int = 20_000
    idle_seconds: float = 600.0
    stalled_seconds: float = 30.0


class KafkaServer:
    def __init__(
        self, name: str, handlers: RequestHandlers, network: Network, clock: Clock, limits: ListenerLimits
    ) -> None:
        self.name = name
        self.handlers = handlers
        self.clock = clock
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.budget = ByteBudget(limits.budget_bytes)
        self.connections: dict[Connection, None] = {}  # not a set: its order must not follow addresses
        self.accepted = 0
        self.rejected_connections = 0
        self.malformed_connections = 0
        self.failures = 0
        self._network = network
        self._per_host: Counter[str] = Counter()
        self._listener: Listener | None = None
        self._errors_logged = 0
        self._kept_running: set[RunningRequest] = set()

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Bind the port. Connections stay in the backlog until `start_accepting`: the broker registers its address
        before its metadata is complete, and clients would treat incomplete metadata as final."""
        self._listener = await self._network.listen(host, port, self._accept)
        self._listener.pause()
        return self._listener.address

    def start_accepting(self) -> None:
        assert self._listener is not None, "listen first"
        self._listener.resume()

    async def run_sweeps(self) -> None:
        """Close connections that are idle for too long, or that make no progress within a frame or a response."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._errors_logged = 0
            now = self.clock.monotonic()
            for connection in list(self.connections):
                waited = now - connection.last_progress
                if connection.is_stalled:
                    if waited > self.limits.stalled_seconds:
                        log.info("closing stalled connection peer=%s seconds=%.0f", connection.client_host, waited)
                        connection.close()
                elif waited > self.limits.idle_seconds and connection.idle:
                    connection.close()

    def stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def drain(self, seconds: float) -> None:
        """Wait for requests in progress, then close all connections."""
        running = self._kept_running.union(*(connection.running for connection in self.connections))
        if running:
            await asyncio.wait([self._end_of(one) for one in running], timeout=seconds)
            await asyncio.sleep(0)  # responses are sent in a separate callback
        for connection in list(self.connections):
            connection.close()

    def forget(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        host = connection.client_host
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    def keep_running(self, running: RunningRequest) -> None:
        """Keep a reference to a request that continues after its connection is closed: asyncio has only weak ones."""
        self._kept_running.add(running)
        running.add_done_callback(self._kept_running.discard)

    def _end_of(self, running: RunningRequest) -> asyncio.Future[None]:
        ended = self.loop.create_future()
        running.add_done_callback(lambda _: None if ended.done() else ended.set_result(None))
        return ended

    def record_error(self, host: str, error: HeadraceError) -> None:
        self.malformed_connections += 1
        self._errors_logged += 1
        if self._errors_logged <= _ERRORS_LOGGED_PER_SWEEP:
            log.info("closing connection peer=%s error=%s", host, error.message)

    def _accept(self, stream: ByteStream) -> None:
        host = stream.peer.rpartition(":")[0]
        if (
            len(self.connections) >= self.limits.connections_max
            or self._per_host[host] >= self.limits.connections_per_host_max
        ):
            self.rejected_connections += 1
            stream.close()
            return
        self.accepted += 1
        self._per_host[host] += 1
        self.connections[Connection(stream, self)] = None
