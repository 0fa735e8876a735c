"""How brokers are reached: the interface of one connection, and at most one connection for each broker and purpose.

Cluster, producer and consumer know only this interface.

Over TCP it is `headrace.client.connections.tcp`; a door that runs inside the broker's process calls the request
handlers directly behind the same interface.
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
    """One broker's end: requests go out in the order of the calls, answers may be awaited side by side."""

    @property
    def peer(self) -> str:
        """Who is at the other end, for messages to people."""

    @property
    def versions(self) -> Mapping[int, VersionRange]:
        """What the broker serves, by API key."""

    @property
    def closed(self) -> bool:
        """Whether a new transport must be dialled."""

    async def call(self, api_key: int, version: int, request: Any, deadline_seconds: float) -> Any:
        """Send a request and wait for its answer.

        The request has left in this call's first step, before anything is awaited: two calls made one after
        the other arrive in that order.
        """

    def post(self, api_key: int, version: int, request: Any) -> None:
        """Send a request that has no answer (Produce with acks=0)."""

    def close(self) -> None:
        """Give up the connection; calls under way end with ConnectionLost."""


class Dialer(Protocol):
    """Opens transports; the cluster's way to new brokers."""

    async def dial(self, host: str, port: int, deadline_seconds: float) -> Transport:
        """A ready transport, its versions known; raises Unreachable."""


def api_of_request(request: Any) -> Api:
    """The API that a request message belongs to."""
    return _API_BY_REQUEST[type(request)]


def choose_version(transport: Transport, api: Api, version_max: int | None = None) -> int:
    """The newest version that both sides speak, and no newer than `version_max`."""
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


# The connections of one client: at most one per broker and lane, dialled when it is first needed.
#
# A broker answers the requests of a connection one after another, so what may wait there for long (Fetch, JoinGroup)
# goes by a lane of its own.


class TransportPool:
    def __init__(self, dialer: Dialer, dial_timeout_seconds: float) -> None:
        self._dialer = dialer
        self._dial_timeout_seconds = dial_timeout_seconds
        self._open_transports: dict[tuple[Address, str], Transport] = {}
        self._dialling: dict[tuple[Address, str], asyncio.Lock] = {}

    async def get_or_dial(self, address: Address, connection_key: str = "") -> Transport:
        """The open transport to this address; dials if there is none, and raises Unreachable if nobody answers."""
        key = (address, connection_key)
        async with self._dialling.setdefault(key, asyncio.Lock()):
            transport = self._open_transports.get(key)
            if transport is None or transport.closed:
                transport = await self._dialer.dial(*address, self._dial_timeout_seconds)
                self._open_transports[key] = transport
            return transport

    def any_open(self, but: Address | None = None) -> Address | None:
        """To whom a transport is open already that has no lane of its own."""
        for (address, connection_key), transport in self._open_transports.items():
            if not connection_key and not transport.closed and address != but:
                return address
        return None

    def close_connections(self, connection_key: str) -> None:
        """Close the connections of a lane that nobody uses any more."""
        for key in [key for key in self._open_transports if key[1] == connection_key]:
            self._open_transports.pop(key).close()

    def close(self) -> None:
        """Close every connection; calls under way end with ConnectionLost."""
        for transport in self._open_transports.values():
            transport.close()
        self._open_transports.clear()
