"""Request handlers: the table of handlers, and the context of a request.

Requests that are not in the table are neither advertised nor served. A handler is a coroutine that takes a decoded
request and its context, and returns the response message, or None for Produce with acks=0. It converts all errors to
error codes in its response; an exception that leaves it is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from headrace.model.errors import MalformedFrame
from headrace.model.histogram import Histogram
from headrace.wire.apis import API_VERSIONS, APIS, FETCH, LEASE, PRODUCE, SETTLE, Api


class RequestContext:
    """One request: its version, its sender, and its listener.

    Requests of one connection start in their order. A handler that must wait before it has done what that order
    promises (a produce whose batch is checked in the disk threads) holds the connection and releases it afterwards.
    """

    __slots__ = ("_close", "_close_callbacks", "_hold", "client_host", "client_id", "listener", "version")

    def __init__(
        self,
        version: int,
        client_id: str | None,
        client_host: str,
        listener: str,
        hold: Callable[[bool], None],
        close: Callable[[], None],
        close_callbacks: dict[object, Callable[[], None]] | None = None,
    ) -> None:
        self.version = version
        self.client_id = client_id
        self.client_host = client_host
        self.listener = listener
        self._hold = hold
        self._close = close
        self._close_callbacks = close_callbacks

    def hold(self) -> None:
        """Start no further request of this connection until `release`."""
        self._hold(True)

    def release(self) -> None:
        self._hold(False)

    def close_connection(self) -> None:
        """Close the connection: the only way to report an error to a client that expects no response (acks=0)."""
        self._close()

    def when_closed(self, key: object, callback: Callable[[], None]) -> None:
        """Register a callback for the end of the connection; a later one with the same key replaces it."""
        if self._close_callbacks is not None:
            self._close_callbacks[key] = callback


HandlerFunction = Callable[[Any, RequestContext], Coroutine[Any, Any, Any]]

UNKNOWN_VERSION = -1
_READ_ONLY = frozenset({FETCH, LEASE})  # a cancelled Lease releases its leases
_RUN_INLINE = frozenset({PRODUCE, SETTLE})


class RequestHandler:
    """`is_read_only` requests may be cancelled when the client is gone; all others run to completion, so that no change
    is left incomplete. `runs_inline` requests are frequent, usually wait only for the disk, and call `switch_to_task`
    before they need a task, also after an await (`runtime/inline_start.py`)."""

    __slots__ = ("api", "handle", "is_read_only", "runs_inline", "time")

    def __init__(self, api: Api, handle: HandlerFunction) -> None:
        self.api = api
        self.handle = handle
        self.is_read_only = api.key in _READ_ONLY
        self.runs_inline = api.key in _RUN_INLINE
        self.time = Histogram()


class RequestHandlers:
    def __init__(self, table: Mapping[int, HandlerFunction]) -> None:
        self._by_key = {key: RequestHandler(APIS[key], handle) for key, handle in table.items()}

    def __iter__(self) -> Iterator[RequestHandler]:
        return iter(self._by_key.values())

    def find(self, api_key: int, version: int) -> tuple[RequestHandler, int]:
        """Return the handler and the version of the response.

        Only ApiVersions is answered for an unknown version, since newer clients use it to learn the supported versions.
        Any other unknown request closes the connection, because the format of its response is unknown.
        """
        handler = self._by_key.get(api_key)
        if handler is None:
            raise MalformedFrame(f"API key {api_key} is not supported")
        api = handler.api
        if api.min_version <= version <= api.max_version:
            return handler, version
        if api_key == API_VERSIONS:
            return handler, UNKNOWN_VERSION
        raise MalformedFrame(
            f"{api.name} version {version} is not supported; use {api.min_version} to {api.max_version}"
        )
