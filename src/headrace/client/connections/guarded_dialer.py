"""A dialer with a circuit breaker for each address.

After several failures in a row, requests to a broker fail immediately, and one caller at a time probes it. A failure is
a failed dial, or a request that reaches its deadline. This is for processes that serve many callers, who would all wait
for the same unreachable broker. A client with a single caller does not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.client.connections.address import Address
from headrace.client.connections.transport import Dialer, Transport, VersionRange
from headrace.client.errors import Unreachable
from headrace.machines.queues.circuit_breaker import CircuitBreaker, CircuitState
from headrace.model.errors import RequestTimedOut
from headrace.runtime.clock import Clock

FAILURES_MAX = 3
OPEN_MS = 500
OPEN_MAX_MS = 3_000


class CircuitOpen(Unreachable):
    """The broker did not respond recently, and requests to it fail without being sent for a while."""


class GuardedDialer:
    """Wraps another dialer. Circuits are never removed, since a cluster has few addresses."""

    def __init__(self, dialer: Dialer, clock: Clock) -> None:
        self._dialer = dialer
        self._clock = clock
        self._circuits: dict[Address, CircuitBreaker] = {}

    async def dial(self, host: str, port: int, deadline_seconds: float) -> Transport:
        address = Address(host, port)
        circuit = self._circuits.setdefault(address, CircuitBreaker(FAILURES_MAX, OPEN_MS, OPEN_MAX_MS))
        _check_circuit(circuit, str(address), self._now_ms())
        try:
            transport = await self._dialer.dial(host, port, deadline_seconds)
        except Unreachable:
            circuit.failed(self._now_ms())
            raise
        if circuit.state != "closed":
            circuit.succeeded()
        return _GuardedTransport(transport, circuit, self._now_ms)

    def states(self) -> Iterator[tuple[Address, CircuitState]]:
        """The circuit state of each address that was ever dialled."""
        return ((address, circuit.state) for address, circuit in self._circuits.items())

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


def _check_circuit(circuit: CircuitBreaker, peer: str, now_ms: int) -> None:
    if not circuit.may_try(now_ms):
        seconds = (circuit.retry_at_ms - now_ms) / 1000
        raise CircuitOpen(f"{peer} has not answered of late, and is asked again in {seconds:.1f} s")


class _GuardedTransport:
    """Checks the circuit before every call and reports the result: a broker may hang with open connections. A
    successful dial does not reset the count of calls that timed out."""

    def __init__(self, transport: Transport, circuit: CircuitBreaker, now_ms: Callable[[], int]) -> None:
        self._transport = transport
        self._circuit = circuit
        self._now_ms = now_ms

    @property
    def peer(self) -> str:
        return self._transport.peer

    @property
    def versions(self) -> Mapping[int, VersionRange]:
        return self._transport.versions

    @property
    def closed(self) -> bool:
        return self._transport.closed

    async def call(self, api_key: int, version: int, request: Any, deadline_seconds: float) -> Any:
        _check_circuit(self._circuit, self.peer, self._now_ms())
        try:
            response = await self._transport.call(api_key, version, request, deadline_seconds)
        except RequestTimedOut:
            self._circuit.failed(self._now_ms())
            raise
        self._circuit.succeeded()
        return response

    def post(self, api_key: int, version: int, request: Any) -> None:
        self._transport.post(api_key, version, request)

    def close(self) -> None:
        self._transport.close()
