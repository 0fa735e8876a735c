"""Request handlers: the table of handlers, the context of a request, and the translation of errors to responses.

- A handler is a coroutine that takes a decoded request and its context, and returns the response, or None for Produce
  with acks=0. mypy checks its messages against the API table in `wire/apis.py`.
- A `HeadraceError` that leaves a handler becomes a response with the error's code and message, if the response has an
  error code for the whole request. A handler reports errors of single topics, partitions or resources by
  `ReportErrors`, also where the response to a failed request contains more than the error. Any other exception that
  leaves a handler is a bug.
- Requests without a handler are neither advertised nor served.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from headrace.model.errors import HeadraceError, MalformedFrame
from headrace.model.histogram import Histogram
from headrace.wire.apis import API_VERSIONS, APIS, FETCH, LEASE, PRODUCE, SETTLE, Api, ApiKey
from headrace.wire.codec.schema import layout

Request = TypeVar("Request")
Response = TypeVar("Response")

UNKNOWN_VERSION = -1
_READ_ONLY = frozenset({FETCH, LEASE})  # a cancelled Lease releases its leases
_RUN_INLINE = frozenset({PRODUCE, SETTLE})


class RequestContext:
    """One request: its version, its sender, and its listener.

    Requests of one connection start in their order. A handler that must wait before it has done what that order
    promises (a produce whose batch is checked in the disk threads) holds the connection and releases it afterwards.
    """

    __slots__ = ("_close_callbacks", "_hold", "client_host", "client_id", "close_connection", "listener", "version")

    def __init__(
        self,
        version: int,
        client_id: str | None,
        client_host: str,
        listener: str,
        hold: Callable[[bool], None],
        close_connection: Callable[[], None],
        close_callbacks: dict[object, Callable[[], None]] | None = None,
    ) -> None:
        self.version = version
        self.client_id = client_id
        self.client_host = client_host
        self.listener = listener
        self._hold = hold
        self.close_connection = close_connection
        """The only way to report an error to a client that expects no response (acks=0)."""
        self._close_callbacks = close_callbacks

    def hold(self) -> None:
        """Start no further request of this connection until `release`."""
        self._hold(True)

    def release(self) -> None:
        self._hold(False)

    def when_closed(self, key: object, callback: Callable[[], None]) -> None:
        """Register a callback for the end of the connection; a later one with the same key replaces it."""
        if self._close_callbacks is not None:
            self._close_callbacks[key] = callback


def internal_context(version: int, client_id: str) -> RequestContext:
    """Return the context of a request that this broker sends to itself."""
    return RequestContext(version, client_id, "", "", lambda _is_held: None, lambda: None)


HandlerFunction = Callable[[Request, RequestContext], Coroutine[Any, Any, Response | None]]


class RequestHandler(Generic[Request, Response]):
    """`is_read_only` requests may be cancelled when the client is gone; all others run to completion, so that no change
    is left incomplete. `runs_inline` requests are frequent, usually wait only for the disk, and call `switch_to_task`
    before they need a task, also after an await (`runtime/inline_start.py`)."""

    __slots__ = ("api", "handle", "is_read_only", "runs_inline", "time")

    def __init__(self, key: ApiKey[Request, Response], handle: HandlerFunction[Request, Response]) -> None:
        self.api: Api = APIS[key]
        self.is_read_only = key in _READ_ONLY
        self.runs_inline = key in _RUN_INLINE
        # The functions of the frequent requests translate all errors themselves, which saves a coroutine per request.
        self.handle: HandlerFunction[Request, Response] = handle
        if not self.is_read_only and not self.runs_inline:
            self.handle = partial(_handle, handle, self.api)
        self.time = Histogram()


class RequestHandlers:
    def __init__(self, handlers: Iterable[RequestHandler[Any, Any]]) -> None:
        self._by_key = {handler.api.key: handler for handler in handlers}

    def __iter__(self) -> Iterator[RequestHandler[Any, Any]]:
        return iter(self._by_key.values())

    def find(self, api_key: int, version: int) -> tuple[RequestHandler[Any, Any], int]:
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


class ReportErrors:
    """A context manager that reports a `HeadraceError` of its block in a response, or in a part of a response.

    with ReportErrors(result):
        result.offset = await self._delete(...)
    """

    __slots__ = ("_message",)

    def __init__(self, message: Any) -> None:
        self._message = message

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, HeadraceError):
            return False
        report_error(self._message, error)
        return True


def report_error(message: Any, error: HeadraceError) -> None:
    """Set the error code, and the error message if the response has one."""
    message.error_code = error.code
    if hasattr(message, "error_message"):
        message.error_message = error.message


async def _handle(
    handle: HandlerFunction[Request, Response], api: Api, request: Request, context: RequestContext
) -> Response | None:
    try:
        return await handle(request, context)
    except HeadraceError as error:
        fields = layout(api.response).fields
        if not any(field.name == "error_code" and field.in_version(context.version) for field in fields):
            raise  # a response without the error would report success
        response: Response = api.response()
        report_error(response, error)
        return response
