"""The table of request handlers. Requests that are not in the table are neither advertised nor served.

A handler is a coroutine that takes a decoded request and its context, and returns the response message, or None for
Produce with acks=0. It converts all errors to error codes in its response; an exception that leaves it is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from headrace.broker.request_context import RequestContext
from headrace.model.errors import MalformedFrame
from headrace.model.histogram import Histogram
from headrace.wire.apis import API_VERSIONS, APIS, FETCH, LEASE, PRODUCE, SETTLE, Api

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
