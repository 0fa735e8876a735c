"""The interface of a connection to a broker, and the pool of a client: one connection per broker and connection key.

- `headrace.client.connections.tcp` implements `Transport` over TCP. A protocol that runs inside the broker's process
  calls the request handlers directly behind the same interface.
- A broker answers the requests of a connection one after another, so requests that may wait for long (Fetch, JoinGroup)
  use a separate connection key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from headrace.client.connections.address import Address
from headrace.client.errors import VersionMismatch
from headrace.wire.apis import APIS, Api


class VersionRange(NamedTuple):
    """The versions of one request that a broker serves, both ends included."""

    low: int
    high: int


class Transport(Protocol):
    """A connection to one broker. Requests are sent in the order of the calls; responses are awaited concurrently."""

    @property
    def peer(self) -> str:
        """The remote address, for messages."""

    @property
    def versions(self) -> Mapping[int, VersionRange]:
        """The versions that the broker serves, by API key."""

    @property
    def closed(self) -> bool:
        """Whether a new transport must be dialled."""

    async def call(self, api_key: int, version: int, request: Any, deadline_seconds: float) -> Any:
        """Send a request and wait for its response. The request is sent in the first step of this call, before anything
        is awaited, so that consecutive calls arrive in order."""

    def post(self, api_key: int, version: int, request: Any) -> None:
        """Send a request that has no response (Produce with acks=0)."""

    def close(self) -> None:
        """Close the connection; pending calls fail with ConnectionLost."""


class Dialer(Protocol):
    async def dial(self, host: str, port: int, deadline_seconds: float) -> Transport:
        """Connect and negotiate versions; raises Unreachable."""


def api_of_request(request: Any) -> Api:
    return _API_BY_REQUEST[type(request)]


def choose_version(transport: Transport, api: Api, version_max: int | None = None) -> int:
    """The newest version that both sides support, at most `version_max`."""
    theirs = transport.versions.get(api.key)
    if theirs is None:
        raise VersionMismatch(f"{transport.peer} does not serve {api.name}; a newer broker is needed")
    newest = api.max_version if version_max is None else min(api.max_version, version_max)
    version = min(newest, theirs.high)
    if version < max(api.min_version, theirs.low):
        raise VersionMismatch(
            f"{transport.peer} serves {api.name} {theirs.low}-{theirs.high}, this client speaks "
            f"{api.min_version}-{newest}; use matching releases"
        )
    return version


_API_BY_REQUEST: dict[type[Any], Api] = {api.request: api for api in APIS.values()}


class TransportPool:
    def __init__(self, dialer: Dialer, dial_timeout_seconds: float) -> None:
        self._dialer = dialer
        self._dial_timeout_seconds = dial_timeout_seconds
        self._open_transports: dict[tuple[Address, str], Transport] = {}
        self._dialling: dict[tuple[Address, str], asyncio.Lock] = {}

    async def get_or_dial(self, address: Address, connection_key: str = "") -> Transport:
        """The open transport to this address; dials if there is none, and raises Unreachable if that fails."""
        key = (address, connection_key)
        async with self._dialling.setdefault(key, asyncio.Lock()):
            transport = self._open_transports.get(key)
            if transport is None or transport.closed:
                transport = await self._dialer.dial(*address, self._dial_timeout_seconds)
                self._open_transports[key] = transport
            return transport

    def any_open(self, but: Address | None = None) -> Address | None:
        """The address of an open transport without connection key."""
        for (address, connection_key), transport in self._open_transports.items():
            if not connection_key and not transport.closed and address != but:
                return address
        return None

    def close_connections(self, connection_key: str) -> None:
        for key in [key for key in self._open_transports if key[1] == connection_key]:
            self._open_transports.pop(key).close()

    def close(self) -> None:
        for transport in self._open_transports.values():
            transport.close()
        self._open_transports.clear()
