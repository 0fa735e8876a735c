"""A client connection: read frames, start requests in order, and send responses in the same order.

- Requests run concurrently, but each runs up to its first await before the next one is parsed. Responses are never
  reordered.
- The connection stops reading while too many responses are pending, while the client does not read its responses,
  while a handler delays later requests, or while the byte budget of the listener is exhausted.
- Malformed bytes close this connection and affect no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.broker.handlers import RequestContext
from headrace.model.errors import HeadraceError, MalformedFrame
from headrace.protocols.kafka.frames import RequestFrameReader
from headrace.protocols.kafka.send_buffer import SendBuffer, release
from headrace.runtime.inline_start import InlineCoroutine, start_inline, start_inline_coroutine
from headrace.runtime.network import ByteStream
from headrace.wire.codec.codec import decode, encode
from headrace.wire.codec.header import encode_response_header, parse_request_header

if TYPE_CHECKING:
    from headrace.protocols.kafka.listener import KafkaServer

log = logging.getLogger(__name__)

_PENDING_RESPONSES_MAX = 256
_UNSENT_BYTES_MAX = 1 << 20
_TRICKLE_BYTES_MIN = 16_384  # progress that an unfinished frame must make within `stalled_seconds`
_READS_PER_WAKEUP_MAX = 8  # reads of one large frame before yielding to other connections

RunningRequest: TypeAlias = asyncio.Task[Any] | InlineCoroutine


class PendingResponse:
    """The position of a response in the response order; empty until its request has completed."""

    __slots__ = ("chunks", "correlation_id", "handler", "is_deferred", "version")

    def __init__(self, handler: Any, version: int, correlation_id: int) -> None:
        self.handler = handler
        self.version = version
        self.correlation_id = correlation_id
        self.chunks: list[Any] | None = None
        self.is_deferred = False  # the request did not complete in its first step

    def set_response(self, response: Any) -> None:
        """Set the response; it is `None` if the request expects none."""
        if response is None:
            self.chunks = []
            return
        chunks = encode(response, self.version)
        header = encode_response_header(
            self.correlation_id, self.handler.api.response_header_version(self.version) == 1
        )
        size = len(header) + sum(map(len, chunks))
        first = chunks[0]
        assert isinstance(first, bytes), "records have a length before them"
        # Joined with the preceding header, since sending one piece is cheaper than two.
        chunks[0] = size.to_bytes(4, "big") + header + first
        self.chunks = chunks


class Connection:
    __slots__ = (
        "_bytes_since_progress",
        "_close_callbacks",
        "_context",
        "_flush_scheduled",
        "_frame_reader",
        "_is_held_by_handler",
        "_is_reading",
        "_is_waiting_for_budget",
        "_pending_responses",
        "_send_buffer",
        "_server",
        "_stream",
        "client_host",
        "closed",
        "last_progress",
        "running",
    )

    def __init__(self, stream: ByteStream, server: KafkaServer) -> None:
        self._stream = stream
        self._server = server
        self._frame_reader = RequestFrameReader(server.scratch, server.budget, server.limits.request_bytes_max)
        self._send_buffer = SendBuffer()
        self._pending_responses: deque[PendingResponse] = deque()
        self._context: RequestContext | None = None  # of the last request; the next one usually has the same
        self._close_callbacks: dict[object, Callable[[], None]] = {}
        self._is_held_by_handler = False
        self._is_reading = True
        self._flush_scheduled = False
        self._is_waiting_for_budget = False
        self._bytes_since_progress = 0  # bytes received since the last progress
        self.closed = False
        self.client_host = stream.peer.rpartition(":")[0]
        self.last_progress = server.clock.monotonic()
        self.running: dict[RunningRequest, bool] = {}  # the requests in progress, and whether they are read-only
        stream.when_readable(self._on_readable)

    @property
    def is_stalled(self) -> bool:
        """Whether the peer has yet to send the rest of a frame, or to read the rest of a response."""
        return bool(self._send_buffer) or (self._frame_reader.unfinished and self._is_reading)

    @property
    def idle(self) -> bool:
        return not self._pending_responses and not self._send_buffer

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for running, is_read_only in self.running.items():
            if is_read_only and isinstance(running, asyncio.Task):
                running.cancel()
            else:
                self._server.keep_running(running)
        for pending in self._pending_responses:
            release(pending.chunks or ())
        self._pending_responses.clear()
        self._send_buffer.clear()
        self._frame_reader.release()
        self._stream.close()
        self._server.forget(self)
        for callback in self._close_callbacks.values():
            callback()

    # Receiving

    def _on_readable(self) -> None:
        frames = self._frame_reader
        try:
            for _ in range(_READS_PER_WAKEUP_MAX):
                room = frames.room()
                if room is None:
                    self._wait_for_budget()
                    break
                count = self._stream.receive_into(room)
                if count == 0:
                    self.close()
                    return
                self._bytes_since_progress += count
                if not frames.received(count, self._start_request):
                    if self.closed:
                        return
                    self._stop_reading()
                    break
                if not frames.unfinished:
                    break
        except BlockingIOError:
            pass
        except MalformedFrame as error:
            self._close_malformed(error)
            return
        except OSError:
            self.close()
            return
        if self._bytes_since_progress >= _TRICKLE_BYTES_MIN or not frames.unfinished:
            # A few bytes now and then do not count as progress; otherwise a slow peer could hold a buffer forever.
            self._bytes_since_progress = 0
            self.last_progress = self._server.clock.monotonic()
        if self._pending_responses and not self._pending_responses[-1].handler.is_read_only:
            self._schedule_flush()  # deferred: fetches that this write has completed respond first
        else:
            self._flush_and_resume()

    def _start_request(self, frame: memoryview) -> bool:
        """Start the request in this frame; return whether the next frame may be served."""
        server = self._server
        header, position = parse_request_header(frame)
        handler, version = server.handlers.find(header.api_key, header.api_version)
        request = decode(handler.api.request, header.api_version, frame, position) if version >= 0 else None
        pending = PendingResponse(handler, max(version, 0), header.correlation_id)
        self._pending_responses.append(pending)
        context = self._context
        if context is None or context.version != version or context.client_id != header.client_id:
            context = self._context = RequestContext(
                version,
                header.client_id,
                self.client_host,
                server.name,
                self._set_held,
                self.close,
                self._close_callbacks,
            )
        handling = self._handle_request(request, context, pending)
        running: RunningRequest | None
        if handler.runs_inline:
            running = start_inline_coroutine(handling, server.loop)
        else:
            outcome = start_inline(handling, server.loop)
            running = None if isinstance(outcome, tuple) else outcome
        if running is not None:
            pending.is_deferred = True
            self.running[running] = handler.is_read_only
            running.add_done_callback(self.running.pop)
        return (
            not self._is_held_by_handler and len(self._pending_responses) < _PENDING_RESPONSES_MAX and not self.closed
        )

    async def _handle_request(self, request: Any, context: RequestContext, pending: PendingResponse) -> None:
        handler, clock = pending.handler, self._server.clock
        began = clock.monotonic()
        try:
            pending.set_response(await handler.handle(request, context))
        except Exception as error:
            self._on_handler_error(pending, error)
        if self.closed:
            release(pending.chunks or ())
            return
        handler.time.observe(clock.monotonic() - began)
        if not pending.is_deferred:
            return  # the frame reading loop sends the response
        if handler.is_read_only:
            self._send_completed()  # a fetching client waits for this response: there is nothing to batch it with
        # Do nothing else here: a request started from this task would run as a part of it.
        if not handler.is_read_only or not self._is_reading:
            self._schedule_flush()

    def _set_held(self, held: bool) -> None:
        self._is_held_by_handler = held
        if not held and not self.closed:
            self._schedule_flush()

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._stream.when_readable(None)

    def _wait_for_budget(self) -> None:
        self._stop_reading()
        if not self._is_waiting_for_budget:
            self._is_waiting_for_budget = True
            self._server.budget.on_release(self._on_budget_released)

    def _on_budget_released(self) -> None:
        self._is_waiting_for_budget = False
        if not self.closed:
            self._server.loop.call_soon(self._flush_and_resume)

    # Sending

    def _schedule_flush(self) -> None:
        # Many requests complete with the same fsync: send their responses in one write.
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._server.loop.call_soon(self._flush_and_resume)

    def _flush_and_resume(self) -> None:
        """Send completed responses, then resume reading if possible."""
        self._flush_scheduled = False
        if self.closed:
            return
        self._send_completed()
        if self._may_read() and not self._is_reading:
            self._resume_reading()

    def _send_completed(self) -> None:
        pending_responses, send_buffer = self._pending_responses, self._send_buffer
        while pending_responses and (chunks := pending_responses[0].chunks) is not None:
            pending_responses.popleft()
            send_buffer.append_chunks(chunks)
        if send_buffer:
            self._send()

    def _send(self) -> None:
        try:
            sent = self._send_buffer.send(self._stream)
        except (OSError, HeadraceError):  # the peer is gone, or the log file cannot be read
            self.close()
            return
        if sent:
            self.last_progress = self._server.clock.monotonic()
        if self._send_buffer:
            self._stream.when_writable(self._on_writable)
            if self._send_buffer.memory_bytes > _UNSENT_BYTES_MAX:
                self._stop_reading()

    def _on_writable(self) -> None:
        self._send()
        if not self.closed and not self._send_buffer:
            self._stream.when_writable(None)
            self._flush_and_resume()

    def _may_read(self) -> bool:
        return not (
            self.closed
            or self._is_held_by_handler
            or self._is_waiting_for_budget
            or len(self._pending_responses) >= _PENDING_RESPONSES_MAX
            or self._send_buffer.memory_bytes > _UNSENT_BYTES_MAX
        )

    def _resume_reading(self) -> None:
        try:
            served_all = self._frame_reader.resume(self._start_request)
        except MalformedFrame as error:
            self._close_malformed(error)
            return
        if self.closed:
            return
        if served_all:
            self._is_reading = True
            self._stream.when_readable(self._on_readable)
        if self._pending_responses and self._pending_responses[0].chunks is not None:
            # Deferred: yield to other connections, however many requests this client has pipelined.
            self._schedule_flush()

    # Failing

    def _close_malformed(self, error: HeadraceError) -> None:
        self._server.record_error(self.client_host, error)
        self.close()

    def _on_handler_error(self, pending: PendingResponse, error: BaseException) -> None:
        """Handle an exception of a handler, which is a bug in Headrace. There is no response for it, so the connection
        is closed."""
        log.error("request failed api=%s peer=%s", pending.handler.api.name, self.client_host, exc_info=error)
        self._server.failures += 1
        self.close()
