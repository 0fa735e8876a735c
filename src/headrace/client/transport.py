"""How one broker is reached. Cluster, producer and consumer know only this interface.

Over TCP it is `headrace.client.tcp`; a door that runs inside the broker's process calls the request handlers
directly behind the same interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

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


def api_of(request: Any) -> Api:
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
