"""The table of requests that this broker serves: what is not in it is neither advertised nor answered.

A handler is a coroutine that takes a decoded request and its context, and returns the response message, or None for the
one request that wants no answer. It turns every refusal into the error codes of its response; an exception that leaves
it is a bug of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from headrace.broker.context import RequestContext
from headrace.model.errors import MalformedFrame
from headrace.model.histogram import Histogram
from headrace.wire.apis import API_VERSIONS, APIS, FETCH, LEASE, PRODUCE, SETTLE, Api

Handle = Callable[[Any, RequestContext], Coroutine[Any, Any, Any]]

UNKNOWN_VERSION = -1
_ONLY_READS = frozenset({FETCH, LEASE})  # a lease that nobody waits for is given back
_ERRANDS = frozenset({PRODUCE, SETTLE})


class Handler:
    """`only_reads`: it may be cancelled when nobody waits for its answer any more. All others run to their end, since
    what they change must not be left half changed. `is_errand`: it comes often, mostly waits for the disk alone, and
    says `in_task` before it needs one, also after a wait (`runtime/eager.py`)."""

    __slots__ = ("api", "handle", "is_errand", "only_reads", "time")

    def __init__(self, api: Api, handle: Handle) -> None:
        self.api = api
        self.handle = handle
        self.only_reads = api.key in _ONLY_READS
        self.is_errand = api.key in _ERRANDS
        self.time = Histogram()


class Handlers:
    def __init__(self, table: Mapping[int, Handle]) -> None:
        self._by_key = {key: Handler(APIS[key], handle) for key, handle in table.items()}

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._by_key.values())

    def find(self, api_key: int, version: int) -> tuple[Handler, int]:
        """The handler and the version to answer in.

        Only ApiVersions is answered in a version that we do not know: it is how a newer client learns what we do know.
        All others end the connection, because the shape of their answer would be a guess.
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
