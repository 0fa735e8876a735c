"""Connect a client to the broker of its own process: calls go directly to the handlers, and by TCP to other brokers.

- A transport behaves like a connection: requests start in the order of the calls, a handler may delay later requests,
  and close callbacks run when the transport is closed.
- Frequent requests (Produce, Fetch, Lease, Settle) are not serialized. All others are encoded and decoded as over TCP,
  so that a client cannot hold references to objects of the broker.
- If the caller stops waiting, a read-only request is cancelled; any other request runs to completion.
- Responses contain records as bytes: a slice of a log file is read before the response is returned, in a disk thread if
  it is large or not in the page cache.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from headrace.broker.handlers import RequestContext, RequestHandler, RequestHandlers
from headrace.client.connections.transport import Dialer, Transport, VersionRange
from headrace.client.errors import ConnectionLost
from headrace.model.errors import HeadraceError, RequestTimedOut
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk
from headrace.runtime.inline_start import InlineCoroutine, start_inline, start_inline_coroutine
from headrace.storage.log.reading import LogSlice
from headrace.wire.apis import FETCH, LEASE, PRODUCE, SETTLE
from headrace.wire.codec.codec import decode, encode

log = logging.getLogger(__name__)

_CALLED_DIRECTLY = frozenset({PRODUCE, FETCH, LEASE, SETTLE})
_WITH_RECORDS = frozenset({FETCH, LEASE})
_READ_ON_LOOP_MAX = 1 << 18  # bytes in the page cache; copying them takes about 50 us
_HOST = "127.0.0.1"
_LISTENER = "in-process"

RunningHandler = asyncio.Task[Any] | InlineCoroutine


class InProcessDialer:
    """Opens transports: to this broker in the process, to other brokers by `remote_dialer`. `local_address` returns the
    advertised address of this broker, which may change during startup."""

    def __init__(
        self,
        handlers: RequestHandlers,
        local_address: Callable[[], tuple[str, int]],
        remote_dialer: Dialer,
        disk: Disk,
        clock: Clock,
        client_id: str,
    ) -> None:
        self.handlers = handlers
        self.disk = disk
        self.clock = clock
        self.client_id = client_id
        self._local_address = local_address
        self._remote_dialer = remote_dialer
        self._running: set[RunningHandler] = set()

    async def dial(self, host: str, port: int, deadline_seconds: float) -> Transport:
        if (host, port) == self._local_address():
            return InProcessTransport(self, f"{host}:{port}")
        return await self._remote_dialer.dial(host, port, deadline_seconds)

    def keep_reference(self, running: RunningHandler) -> None:
        """Keep a reference to the task until it ends: asyncio has only weak ones, and the transport may be gone."""
        self._running.add(running)
        running.add_done_callback(self._running.discard)


@dataclass(slots=True, eq=False)
class _InProcessCall:
    """A request, its handler, and the future of its response."""

    handler: RequestHandler[Any, Any]
    version: int
    request: Any
    response: asyncio.Future[Any]
    running: RunningHandler | None = None

    def cancel(self) -> None:
        """The caller has stopped waiting for the response."""
        if self.handler.is_read_only and isinstance(self.running, asyncio.Task):
            self.running.cancel()


class InProcessTransport:
    def __init__(self, dialer: InProcessDialer, peer: str) -> None:
        self.peer = peer
        self.versions = {
            handler.api.key: VersionRange(handler.api.min_version, handler.api.max_version)
            for handler in dialer.handlers
        }
        self._dialer = dialer
        self._loop = asyncio.get_running_loop()
        self._contexts: dict[int, RequestContext] = {}
        self._close_callbacks: dict[object, Callable[[], None]] = {}
        self._calls: dict[_InProcessCall, None] = {}
        self._waiting: deque[_InProcessCall] = deque()  # calls that wait until a handler stops delaying later requests
        self._is_held = False
        self._failure: HeadraceError | None = None

    @property
    def closed(self) -> bool:
        return self._failure is not None

    async def call(self, api_key: int, version: int, request: Any, deadline_seconds: float) -> Any:
        call = self._begin(api_key, version, request)
        if call.response.done():
            return call.response.result()
        timer = self._loop.call_later(deadline_seconds, self._time_out, call, deadline_seconds)
        try:
            return await call.response
        finally:
            timer.cancel()
            if not call.response.done() or call.response.cancelled():
                call.cancel()

    def post(self, api_key: int, version: int, request: Any) -> None:
        self._begin(api_key, version, request)

    def close(self) -> None:
        if self._failure is not None:
            return
        self._failure = ConnectionLost(f"the connection to {self.peer} was closed by this client")
        for call in self._calls:
            call.cancel()
            self._complete(call, ConnectionLost(self._failure.message))
        self._calls.clear()
        self._waiting.clear()
        for callback in self._close_callbacks.values():
            callback()

    def _begin(self, api_key: int, version: int, request: Any) -> _InProcessCall:
        if self._failure is not None:
            raise self._failure
        handler, version = self._dialer.handlers.find(api_key, version)
        call = _InProcessCall(handler, version, request, self._loop.create_future())
        self._calls[call] = None
        if self._is_held or self._waiting:
            self._waiting.append(call)
        else:
            self._start(call)
        return call

    def _start(self, call: _InProcessCall) -> None:
        """Run up to the first await as a connection does: outside of any task, including the caller's."""
        task = asyncio.current_task()
        if task is not None:
            asyncio._leave_task(self._loop, task)  # noqa: SLF001 - intended for code that drives coroutines
        try:
            call.running = self._drive(call.handler, self._run_handler(call))
        finally:
            if task is not None:
                asyncio._enter_task(self._loop, task)  # noqa: SLF001
        if call.running is not None:
            self._dialer.keep_reference(call.running)

    def _drive(self, handler: RequestHandler[Any, Any], work: Coroutine[Any, Any, None]) -> RunningHandler | None:
        if handler.runs_inline:
            return start_inline_coroutine(work, self._loop)
        result = start_inline(work, self._loop)
        return None if isinstance(result, tuple) else result

    async def _run_handler(self, call: _InProcessCall) -> None:
        handler, clock = call.handler, self._dialer.clock
        started = clock.monotonic()
        result: Any
        try:
            result = await self._handle(call)
        except HeadraceError as error:
            result = error
        except Exception as error:
            # Fail as a closed connection would, since the error has no response of this request type.
            log.error("in-process request failed api=%s", handler.api.name, exc_info=error)
            result = ConnectionLost(f"{handler.api.name} failed; see the log of the broker")
        handler.time.observe(clock.monotonic() - started)
        self._calls.pop(call, None)
        self._complete(call, result)

    async def _handle(self, call: _InProcessCall) -> Any:
        handler, version, request = call.handler, call.version, call.request
        direct = handler.api.key in _CALLED_DIRECTLY
        if not direct:
            request = _as_received(request, version)
        elif handler.api.key == PRODUCE:
            _copy_read_only_records(request)
        response = await handler.handle(request, self._context(version))
        if response is None:
            return None
        if not direct:
            return _as_received(response, version)
        if handler.api.key in _WITH_RECORDS:
            await self._load(response.topics if handler.api.key == LEASE else response.responses)
        return response

    def _context(self, version: int) -> RequestContext:
        context = self._contexts.get(version)
        if context is None:
            context = self._contexts[version] = RequestContext(
                version, self._dialer.client_id, _HOST, _LISTENER, self._set_held, self.close, self._close_callbacks
            )
        return context

    def _set_held(self, held: bool) -> None:
        self._is_held = held
        if not held and self._waiting:
            # Deferred: the handler that ends the delay continues first.
            self._loop.call_soon(self._start_waiting_calls)

    def _start_waiting_calls(self) -> None:
        while self._waiting and not self._is_held:
            self._start(self._waiting.popleft())

    async def _load(self, topics: Iterable[Any]) -> None:
        """Replace slices of log files by their bytes. The slices are released even if reading fails."""
        parts = [part for topic in topics for part in topic.partitions if part.records is not None]
        try:
            for part in parts:
                found = part.records
                part.records = memoryview(await self._read(found) if isinstance(found, LogSlice) else found)
        finally:
            for part in parts:
                if isinstance(part.records, LogSlice):
                    part.records.release()

    async def _read(self, records: LogSlice) -> bytes:
        data = None
        if not len(records):
            data = b""
        elif len(records) <= _READ_ON_LOOP_MAX:
            data = records.file.pread_hot(records.size, records.position)
        if data is None:
            data = await self._dialer.disk.run(records.bytes)
        if len(data) != len(records):
            raise ConnectionLost("the log file is shorter than the slice to read")
        records.release()
        return data

    def _time_out(self, call: _InProcessCall, seconds: float) -> None:
        error = RequestTimedOut(f"{self.peer} did not respond to {call.handler.api.name} within {seconds:g} s")
        call.cancel()
        self._complete(call, error)

    def _complete(self, call: _InProcessCall, result: Any) -> None:
        if call.response.done():
            return
        if isinstance(result, Exception):
            call.response.set_exception(result)
            call.response.exception()  # mark it as retrieved: the caller of `post` does not await it
        else:
            call.response.set_result(result)


def _as_received(message: Any, version: int) -> Any:
    """Encode and decode a message, as if it went over a connection."""
    data = b"".join(map(_bytes_of, encode(message, version)))
    return decode(type(message), version, memoryview(data))


def _bytes_of(chunk: Any) -> Any:
    if not isinstance(chunk, LogSlice):
        return chunk
    try:
        return chunk.bytes()
    finally:
        chunk.release()


def _copy_read_only_records(request: Any) -> None:
    """Copy read-only batches, because the log writes offset and epoch into a batch."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if records is not None and not (isinstance(records, memoryview) and not records.readonly):
                data.records = memoryview(bytearray(records))
