"""The pending responses of a connection, in the order of its requests.

- A request starts immediately and runs up to its first await, regardless of pending responses. Responses are never
  reordered.
- A response without a known end (a stream or a WebSocket) delays all later ones.
- A stream is sent chunk by chunk; the next chunk is requested only when there is room for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from headrace.http import problems
from headrace.http.message import HttpResponse, Request, Response, StreamedResponse, WebSocketResponse
from headrace.http.problems import Problem
from headrace.http.request_reader import RequestAdmission
from headrace.http.response_heads import has_body
from headrace.http.routes import options_response
from headrace.runtime.inline_start import InlineCoroutine, start_inline, start_inline_coroutine
from headrace.runtime.request_ids import request_id

if TYPE_CHECKING:
    from headrace.http.connection import HttpConnection
    from headrace.http.listener import HttpListener
    from headrace.http.websocket import WebSocketConnection


log = logging.getLogger(__name__)

_JOINED_BYTES_MAX = 16_384  # larger bodies are not copied to join them with their head
_LAST_CHUNK = b"0\r\n\r\n"


class PendingHttpResponse:
    """The position of one response; empty until its request has completed."""

    __slots__ = ("admission", "is_http10", "keep_alive", "request", "response", "running", "started_at")

    def __init__(
        self, request: Request, keep_alive: bool, is_http10: bool, started_at: float, response: HttpResponse | None
    ) -> None:
        self.request = request
        self.admission: RequestAdmission | None = None  # set if the request has a body
        self.keep_alive = keep_alive
        self.is_http10 = is_http10
        self.started_at = started_at
        self.response = response
        self.running: asyncio.Task[Any] | InlineCoroutine | None = None

    @property
    def is_read_only(self) -> bool:
        return self.request.method in ("GET", "HEAD")


class ResponseQueue:
    __slots__ = ("_connection", "_listener", "_output", "pending_responses", "since", "streaming", "websocket")

    def __init__(self, connection: HttpConnection, listener: HttpListener, now: float) -> None:
        self._connection = connection
        self._listener = listener
        self.pending_responses: deque[PendingHttpResponse] = deque()
        self._output: list[bytes] = []
        self.streaming: asyncio.Task[None] | None = None
        self.websocket: WebSocketConnection | None = None
        self.since = now  # time of the last response

    def serve(self, request: Request, admission: RequestAdmission | None, keep_alive: bool, is_http10: bool) -> None:
        """Start a request; an immediate response is sent by `advance` or `flush`."""
        listener, connection = self._listener, self._connection
        started_at = connection.start_request(keep_alive)
        pending = PendingHttpResponse(request, keep_alive, is_http10, started_at, None)
        pending.admission = admission
        before = request_id.set(request.id)
        try:
            # A modifying request is never cancelled, and usually needs no task.
            outcome = (start_inline if pending.is_read_only else start_inline_coroutine)(
                self._handle_request(pending), listener.loop
            )
        finally:
            request_id.reset(before)
        response = pending.response
        if response is None:
            assert isinstance(outcome, asyncio.Task | InlineCoroutine)
            pending.running = outcome
            self.pending_responses.append(pending)
        elif self.pending_responses or type(response) is not Response:
            self.pending_responses.append(pending)
        else:
            self._write_response(request, response, keep_alive, is_http10, started_at)

    def respond_with_error(self, request: Request, problem: Problem) -> None:
        """Append an error as the last response."""
        self.pending_responses.append(
            PendingHttpResponse(request, False, False, self._listener.clock.monotonic(), problem.response())
        )

    def advance(self) -> None:
        """Send completed responses in order."""
        pending = self.pending_responses
        while pending and self.streaming is None and self.websocket is None:
            first, response = pending[0], pending[0].response
            if response is None:
                break
            if isinstance(response, Response):
                pending.popleft()
                self._write_response(first.request, response, first.keep_alive, first.is_http10, first.started_at)
            elif isinstance(response, StreamedResponse):
                self._start_stream(first, response)
            else:
                self._start_websocket(first, response)
        self.flush()

    def flush(self) -> None:
        out = self._output
        if out:
            self._output = []
            self._connection.write(out)

    def on_connection_lost(self) -> None:
        """Handle the loss of the client: cancel read-only requests and let others complete."""
        if self.streaming is not None:
            self.streaming.cancel()
        if self.websocket is not None:
            self.websocket.on_connection_lost()
        for pending in self.pending_responses:
            if isinstance(pending.running, asyncio.Task) and pending.is_read_only:
                pending.running.cancel()
            elif pending.running is not None:
                self._listener.keep_running(pending.running)
            elif isinstance(pending.response, StreamedResponse) and (
                self.streaming is None or pending is not self.pending_responses[0]
            ):
                start_inline(close_chunks(pending.response), self._listener.loop)

    # Complete responses

    async def _handle_request(self, pending: PendingHttpResponse) -> None:
        request, admission, application = pending.request, pending.admission, self._listener.application
        try:
            if admission is not None:
                await admission.wait()
            if admission is None or admission.at < pending.started_at:
                await application.admit(request)
            response = await application.handle(request)
        except asyncio.CancelledError:
            response = problems.shutting_down().response()
        except Exception as error:
            response = self._error_response(request, error)
        if request.body:
            self._listener.budget.release(request.peer, len(request.body))
        pending.response = response
        if pending.running is None:  # it completed in its first step: `serve` continues
            return
        pending.running = None
        if not self._connection.is_gone:
            self._connection.advance()
        elif isinstance(response, StreamedResponse):
            start_inline(close_chunks(response), self._listener.loop)

    def _error_response(self, request: Request, error: BaseException) -> Response:
        return (error if isinstance(error, Problem) else self.failed(request, error)).response()

    def failed(self, request: Request, error: BaseException) -> Problem:
        """Log an exception, which is a bug in Headrace, and return the problem for it."""
        before = request_id.set(request.id)
        log.error(
            "request failed method=%s path=%s peer=%s", request.method, request.path, request.peer, exc_info=error
        )
        request_id.reset(before)
        self._listener.failures += 1
        return problems.internal_error(request.id)

    def _write_response(
        self, request: Request, response: Response, keep_alive: bool, is_http10: bool, started_at: float
    ) -> None:
        listener = self._listener
        if request.method == "OPTIONS":
            response = options_response(request, response)
        connection_header = "keep-alive" if is_http10 else ""
        if not keep_alive or (self._connection.is_last and not self.pending_responses):
            connection_header = "close"
        body, status = response.body, response.status
        try:
            head = listener.heads.sized(
                status, response.content_type, len(body), response.headers, request.id, connection_header
            )
        except ValueError as error:
            self._write_response(request, self._error_response(request, error), keep_alive, is_http10, started_at)
            return
        if not has_body(request.method, status):
            body = b""
        if len(body) <= _JOINED_BYTES_MAX:
            self._output.append(head + body)
        else:
            self._output += (head, body)
            self.flush()  # only this shows whether there is room for more
        self.since = listener.record_response(request, status, started_at)

    # Responses without a known end

    def _start_stream(self, pending: PendingHttpResponse, streamed: StreamedResponse) -> None:
        listener, request, connection = self._listener, pending.request, self._connection
        if pending.is_http10:
            pending.keep_alive, connection.is_last = False, True  # the body ends with the connection
        connection_header = "" if pending.keep_alive else "close"
        try:
            head = listener.heads.streamed(streamed, request.id, connection_header, chunked=not pending.is_http10)
        except ValueError as error:
            start_inline(close_chunks(streamed), listener.loop)
            pending.response = self._error_response(request, error)
            return
        self._output.append(head)
        self.flush()
        self.since = listener.record_response(request, streamed.status, pending.started_at)
        with_body = has_body(request.method, streamed.status)
        sending = (
            send_chunks(connection, streamed, chunked=not pending.is_http10) if with_body else close_chunks(streamed)
        )
        outcome = start_inline(sending, listener.loop)
        if isinstance(outcome, tuple):
            self.pending_responses.popleft()
        else:
            self.streaming = outcome
            outcome.add_done_callback(self._on_streamed)

    def _on_streamed(self, task: asyncio.Task[None]) -> None:
        self.streaming = None
        if self._connection.is_gone:
            return
        self.pending_responses.popleft()
        if task.cancelled():
            self._connection.abort()  # so that the client does not mistake a partial body for a complete one
        else:
            self._connection.advance()

    def _start_websocket(self, pending: PendingHttpResponse, upgraded: WebSocketResponse) -> None:
        from headrace.http.websocket import WebSocketConnection, handshake_headers  # rarely used, and slow to import

        listener, connection = self._listener, self._connection
        headers = handshake_headers(pending.request) if connection.reader.wants_websocket(pending.request) else None
        if headers is None:
            pending.response = problems.upgrade_required().response()
            return
        self._output.append(listener.heads.upgraded(headers, pending.request.id))
        self.flush()
        self.since = listener.record_response(pending.request, 101, pending.started_at)
        self.websocket = websocket = WebSocketConnection(connection, listener.limits, listener.clock)
        pending.running = listener.loop.create_task(websocket.run(upgraded.websocket_handler))
        websocket.receive_data(connection.reader.trailing)
        connection.resume_reading()


async def send_chunks(connection: HttpConnection, streamed: StreamedResponse, *, chunked: bool) -> None:
    """Send all chunks and the end marker. On a failure the end marker is not sent, so that the client does not mistake
    a partial body for a complete one."""
    try:
        async for chunk in streamed.chunks:
            if chunk:  # an empty chunk would end the body
                connection.write([b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk])
            await connection.wait_writable()
            if connection.is_gone:
                return
        if chunked:
            connection.write([_LAST_CHUNK])
    except Exception:
        log.exception("stream failed peer=%s", connection.host)
        connection.abort()
    finally:
        await close_chunks(streamed)


async def close_chunks(streamed: StreamedResponse) -> None:
    """Close the iterator of the chunks."""
    close = getattr(streamed.chunks, "aclose", None)  # optional for iterators
    if close is not None:
        await close()
