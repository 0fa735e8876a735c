"""A client connection: parse requests, write responses, and enforce timeouts.

- Reading stops while too many responses are pending, or while the client does not read its responses.
- A malformed request ends the connection after all pending responses and the error have been sent. Further input is
  discarded for a moment, because closing with unread input would reset the connection and lose the error response.
- A client that has closed its sending side still gets its responses. Whether the client is gone altogether shows only
  on a write. Therefore a long poll is preceded by two `100 Continue` responses: a client that is gone replies with
  a reset, so that no messages are leased for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from headrace.http import problems
from headrace.http.message import Request
from headrace.http.problems import Problem
from headrace.http.request_reader import BODY, HEAD, IDLE, NO_REQUEST, SLICE_BYTES, RequestAdmission, RequestReader
from headrace.http.response_heads import CONTINUE
from headrace.http.response_queue import PendingHttpResponse, ResponseQueue

if TYPE_CHECKING:
    from headrace.http.listener import HttpListener

_REQUESTS_PER_WAKEUP_MAX = 32  # requests of one connection before yielding to others
_PROBES_MAX = 2


class HttpConnection(asyncio.Protocol):
    """`is_last` means that no further requests are read."""

    __slots__ = (
        "_has_ended",
        "_is_half_closed",
        "_is_lingering",
        "_listener",
        "_paused",
        "_paused_at",
        "_probes",
        "_progress",
        "_responses",
        "_room",
        "_started",
        "_transport",
        "_unparsed",
        "_unsent",
        "host",
        "is_gone",
        "is_handshaking",
        "is_last",
        "is_reserved",
        "reader",
    )

    _responses: ResponseQueue
    _transport: asyncio.Transport
    reader: RequestReader

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._unparsed: memoryview | None = None
        self._started = 0  # requests started in this turn of the event loop
        self._paused = False  # reading is paused
        self._paused_at = 0.0
        self._room: asyncio.Event | None = None  # set while writing is paused
        self._unsent = 0
        self._progress = 0.0  # when the client last read something
        self._is_half_closed = False
        self._is_lingering = False  # input is discarded before closing
        self._has_ended = False  # nothing more is sent
        self._probes = 0
        self.is_reserved = False  # above the limits: allows one request for a health page
        self.host = ""
        self.is_last = False
        self.is_gone = False
        self.is_handshaking = False  # with TLS, `_transport` is the plain one until `start_secured`

    # Start and end of the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not declare that they implement Transport.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.host = peer[0] if peer else ""
        now = self._listener.clock.monotonic()
        self._responses = ResponseQueue(self, self._listener, now)
        self.reader = RequestReader(self._listener, self.host, now, self._responses.serve, self._on_admission)
        if not self._listener.admit(self):
            self.is_reserved = True
            self.reader.only_paths = self._listener.reserved_paths

    def start_secured(self, transport: asyncio.Transport) -> None:
        """Use `transport` from now on, because the TLS handshake has completed."""
        self.is_handshaking = False
        self._transport = transport

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_gone = self.is_last = self._has_ended = True
        self._unparsed = None
        self.reader.release()
        self._responses.on_connection_lost()
        if self._room is not None:
            self._room.set()
        self._listener.forget(self)

    def eof_received(self) -> bool:
        """Return True to keep the connection open for pending responses; TLS does not support half-closed ones."""
        self._is_half_closed = True
        if self._responses.streaming is not None:
            self._responses.streaming.cancel()  # a client that half-closes does not wait for an endless response
        elif not self.is_last and self.reader.phase != IDLE:
            self._respond_with_error(problems.incomplete_request())
        self.is_last = True
        return (
            bool(self._responses.pending_responses)
            and self._responses.websocket is None
            and self._transport.can_write_eof()
        )

    def close_gracefully(self) -> None:
        """Close after pending responses: end streams now, and wait for requests in progress."""
        self.is_last = True
        if self.is_handshaking:
            self.abort()
            return
        if self._responses.streaming is not None:
            self._responses.streaming.cancel()
        if self._responses.websocket is not None:
            self._responses.websocket.close_going_away()
        elif not self._responses.pending_responses:
            self.end()

    def end(self) -> None:
        """Close after everything has been sent."""
        if self._has_ended:
            return
        self._has_ended = True
        self._progress = self._listener.clock.monotonic()
        self._unsent = self._transport.get_write_buffer_size()
        if self._is_lingering and not self._is_half_closed and self._transport.can_write_eof():
            self.resume_reading()
            self._transport.write_eof()
        else:
            self._transport.close()

    def abort(self) -> None:
        if not self.is_gone:
            self._transport.abort()

    # Timeouts

    def sweep(self, now: float) -> None:
        """Close the connection if a timeout has expired."""
        if self.is_handshaking:
            return  # the handshake has its own timeout
        limits, reader, responses = self._listener.limits, self.reader, self._responses
        if responses.websocket is not None:
            responses.websocket.sweep(now)
        if self._room is not None or self._has_ended:
            self._sweep_unsent(now)
        elif reader.phase == HEAD and not self._paused:
            if now > reader.deadline:
                self._respond_with_error(problems.head_timed_out(limits.head_seconds))
        elif reader.phase == BODY and not self._paused:
            if now > reader.deadline:
                self._respond_with_error(problems.body_too_slow(limits.body_bytes_per_second_min, limits.body_seconds))
        elif not responses.pending_responses:
            # A connection without any request has the timeout of a head, and is closed without a response.
            ends = reader.deadline if reader.request is NO_REQUEST else responses.since + limits.idle_seconds
            if reader.phase == IDLE and now > ends:
                self.end()
        elif self._is_half_closed:
            self._probe_connection(responses.pending_responses[0])

    def _sweep_unsent(self, now: float) -> None:
        unsent, limits = self._transport.get_write_buffer_size(), self._listener.limits
        if unsent < self._unsent:
            self._unsent, self._progress = unsent, now
        elif now - self._progress > (limits.unread_seconds if unsent else limits.linger_seconds):
            self.abort()

    def _probe_connection(self, pending: PendingHttpResponse) -> None:
        if self._probes < _PROBES_MAX and pending.response is None and pending.is_read_only and not pending.is_http10:
            self._probes += 1
            self._transport.write(CONTINUE)

    # Reading

    def data_received(self, data: bytes) -> None:
        listener, reader, responses = self._listener, self.reader, self._responses
        listener.bytes_in += len(data)
        if self.is_last:
            if responses.websocket is not None:
                responses.websocket.receive_data(data)
            return
        reader.now = listener.clock.monotonic()
        if len(data) > SLICE_BYTES:
            self._unparsed = memoryview(data)
            self.advance()
            return
        self._feed_reader(data)
        pending = responses.pending_responses
        is_due = pending and (pending[0].response is not None or len(pending) >= listener.limits.pending_responses_max)
        if is_due or self.is_last or reader.expects_continue or reader.is_blocked_on_admission:
            self.advance()
        else:
            responses.flush()

    def start_request(self, keep_alive: bool) -> float:
        """Count a request that starts; return the current time."""
        self._started += 1
        if not keep_alive or self.is_reserved:
            self.is_last = True
            if self.reader.upgrade:
                self.pause_reading()  # further input belongs to the WebSocket, if it is accepted
        return self.reader.now

    def advance(self) -> None:
        """Send completed responses, resume reading if possible, and close if there is nothing left to do."""
        if self.is_gone:
            return
        self._responses.advance()
        if self._unparsed is not None and self._may_read():
            self._continue_reading()
            self._responses.advance()
        if self._unparsed is not None and self._responses.websocket is not None:
            rest, self._unparsed = bytes(self._unparsed), None
            self._responses.websocket.receive_data(rest)  # input after the upgrade request
        if not self.is_last:
            self._update_reading()
        elif not self._responses.pending_responses:
            self.end()
        elif self._room is None and not self.reader.upgrade:
            self.resume_reading()  # only to detect the end of the connection

    def _update_reading(self) -> None:
        reader = self.reader
        if reader.expects_continue and not reader.is_blocked_on_admission and not self._responses.pending_responses:
            reader.expects_continue = False
            if reader.phase == BODY and not reader.body_bytes:
                self._transport.write(CONTINUE)
        if not self._may_read():
            self.pause_reading()
        elif self._unparsed is None:
            self.resume_reading()
        else:
            self.pause_reading()
            self._listener.loop.call_soon(self.advance)  # yield to other connections first

    def _feed_reader(self, data: bytes | memoryview) -> None:
        try:
            self.reader.feed(data)
        except Problem as problem:
            if not self.is_last:  # input after the last request is ignored
                self._respond_with_error(problem)

    def _respond_with_error(self, problem: Problem) -> None:
        reader, request = self.reader, self.reader.request
        if request is NO_REQUEST:  # the head is incomplete
            request = Request("-", "-", {}, {}, b"", self.host, self._listener.next_id())
        reader.release()
        self._unparsed = None
        self._listener.refused += 1
        self.is_last = self._is_lingering = True
        self._responses.respond_with_error(request, problem)
        self.advance()

    def _on_admission(self, admission: RequestAdmission) -> None:
        """Continue after the check of the request whose body is being read; complete requests await their own check."""
        reader = self.reader
        if self.is_gone or self.is_last or reader.phase != BODY or reader.admission is not admission:
            return
        try:
            reader.finish_admission()
        except Exception as error:
            self._respond_with_error(
                error if isinstance(error, Problem) else self._responses.failed(reader.request, error)
            )
        else:
            self.advance()

    def _continue_reading(self) -> None:
        self.reader.now = self._listener.clock.monotonic()
        self._started = 0
        while (view := self._unparsed) is not None and self._started < _REQUESTS_PER_WAKEUP_MAX and self._may_read():
            size = self.reader.slice_bytes
            self._unparsed = view[size:] if len(view) > size else None
            self._feed_reader(view[:size])

    def _may_read(self) -> bool:
        if self._room is not None or self.is_last or self.reader.is_blocked_on_admission:
            return False
        return len(self._responses.pending_responses) < self._listener.limits.pending_responses_max

    def pause_reading(self) -> None:
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._paused_at = self._listener.clock.monotonic()
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self.reader.deadline += (
                self._listener.clock.monotonic() - self._paused_at
            )  # the client could not send meanwhile
            self._transport.resume_reading()

    # Writing

    @property
    def is_write_blocked(self) -> bool:
        """Whether the write buffer is full."""
        return self._room is not None

    def write(self, pieces: Sequence[bytes]) -> None:
        if self.is_gone:
            return
        if len(pieces) == 1:
            self._listener.bytes_out += len(pieces[0])
            self._transport.write(pieces[0])
        else:
            self._listener.bytes_out += sum(map(len, pieces))
            self._transport.writelines(pieces)

    async def wait_writable(self) -> None:
        """Wait until there is room in the write buffer."""
        while self._room is not None and not self.is_gone:
            await self._room.wait()

    def pause_writing(self) -> None:
        self._room = asyncio.Event()
        self._unsent = self._transport.get_write_buffer_size()
        self._progress = self._listener.clock.monotonic()
        self.pause_reading()

    def resume_writing(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None
            if self._responses.websocket is None:
                self.advance()
            else:
                self._responses.websocket.resume_parsing()
