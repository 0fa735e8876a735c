"""The pending responses of a connection, in the order of its requests.

A request starts immediately and runs up to its first await, regardless of pending responses. Responses are never
reordered. A response without a known end (a stream or a WebSocket) delays all later ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from headrace.http import refusals
from headrace.http.admission import Admission
from headrace.http.head import has_body
from headrace.http.message import Answer, Request, Response, Streamed, Upgraded
from headrace.http.options import options_response
from headrace.http.problem import Problem
from headrace.http.streaming import close_chunks, send_chunks
from headrace.runtime.eager import Errand, start, start_errand
from headrace.runtime.request_ids import request_id

if TYPE_CHECKING:
    from headrace.http.exchange import Exchange
    from headrace.http.listener import HttpListener
    from headrace.http.websocket import Conversation

log = logging.getLogger(__name__)

_JOINED_BYTES_MAX = 16_384  # larger bodies are not copied to join them with their head


class Owed:
    """The position of one response; empty until its request has completed."""

    __slots__ = ("admission", "answer", "began", "is_old", "keep_alive", "request", "running")

    def __init__(self, request: Request, keep_alive: bool, is_old: bool, began: float, answer: Answer | None) -> None:
        self.request = request
        self.admission: Admission | None = None  # set if the request has a body
        self.keep_alive = keep_alive
        self.is_old = is_old
        self.began = began
        self.answer = answer
        self.running: asyncio.Task[Any] | Errand | None = None

    @property
    def only_reads(self) -> bool:
        return self.request.method in ("GET", "HEAD")


class Answers:
    __slots__ = ("_door", "_exchange", "_out", "conversation", "owed", "since", "streaming")

    def __init__(self, exchange: Exchange, door: HttpListener, now: float) -> None:
        self._exchange = exchange
        self._door = door
        self.owed: deque[Owed] = deque()
        self._out: list[bytes] = []
        self.streaming: asyncio.Task[None] | None = None
        self.conversation: Conversation | None = None
        self.since = now  # time of the last response

    def serve(self, request: Request, admission: Admission | None, keep_alive: bool, is_old: bool) -> None:
        """Start a request; an immediate response is sent by `advance` or `flush`."""
        door, exchange = self._door, self._exchange
        began = exchange.began(keep_alive)
        owed = Owed(request, keep_alive, is_old, began, None)
        owed.admission = admission
        before = request_id.set(request.id)
        try:
            # A modifying request is never cancelled, and usually needs no task.
            outcome = (start if owed.only_reads else start_errand)(self._carry_out(owed), door.loop)
        finally:
            request_id.reset(before)
        answer = owed.answer
        if answer is None:
            assert isinstance(outcome, asyncio.Task | Errand)
            owed.running = outcome
            self.owed.append(owed)
        elif self.owed or type(answer) is not Response:
            self.owed.append(owed)
        else:
            self._put(request, answer, keep_alive, is_old, began)

    def refuse(self, request: Request, problem: Problem) -> None:
        """Append an error as the last response."""
        self.owed.append(Owed(request, False, False, self._door.clock.monotonic(), problem.response()))

    def advance(self) -> None:
        """Send completed responses in order."""
        owed = self.owed
        while owed and self.streaming is None and self.conversation is None:
            first, answer = owed[0], owed[0].answer
            if answer is None:
                break
            if isinstance(answer, Response):
                owed.popleft()
                self._put(first.request, answer, first.keep_alive, first.is_old, first.began)
            elif isinstance(answer, Streamed):
                self._stream(first, answer)
            else:
                self._converse(first, answer)
        self.flush()

    def flush(self) -> None:
        out = self._out
        if out:
            self._out = []
            self._exchange.write(out)

    def lose(self) -> None:
        """Handle the loss of the client: cancel read-only requests and let others complete."""
        if self.streaming is not None:
            self.streaming.cancel()
        if self.conversation is not None:
            self.conversation.lose()
        for owed in self.owed:
            if isinstance(owed.running, asyncio.Task) and owed.only_reads:
                owed.running.cancel()
            elif owed.running is not None:
                self._door.leave_running(owed.running)
            elif isinstance(owed.answer, Streamed) and (self.streaming is None or owed is not self.owed[0]):
                start(close_chunks(owed.answer), self._door.loop)

    # Complete responses

    async def _carry_out(self, owed: Owed) -> None:
        request, admission, application = owed.request, owed.admission, self._door.application
        try:
            if admission is not None:
                await admission.wait()
            if admission is None or admission.at < owed.began:
                await application.admit(request)
            answer = await application.answer(request)
        except asyncio.CancelledError:
            answer = refusals.going_away().response()
        except Exception as error:
            answer = self._answer_to(request, error)
        if request.body:
            self._door.budget.give_back(request.peer, len(request.body))
        owed.answer = answer
        if owed.running is None:  # it completed in its first step: `serve` continues
            return
        owed.running = None
        if not self._exchange.is_gone:
            self._exchange.advance()
        elif isinstance(answer, Streamed):
            start(close_chunks(answer), self._door.loop)

    def _answer_to(self, request: Request, error: BaseException) -> Response:
        return (error if isinstance(error, Problem) else self.failed(request, error)).response()

    def failed(self, request: Request, error: BaseException) -> Problem:
        """Log an exception, which is a bug in Headrace, and return the problem for it."""
        before = request_id.set(request.id)
        log.error(
            "request failed method=%s path=%s peer=%s", request.method, request.path, request.peer, exc_info=error
        )
        request_id.reset(before)
        self._door.failures += 1
        return refusals.failed(request.id)

    def _put(self, request: Request, response: Response, keep_alive: bool, is_old: bool, began: float) -> None:
        door = self._door
        if request.method == "OPTIONS":
            response = options_response(request, response)
        connection = "keep-alive" if is_old else ""
        if not keep_alive or (self._exchange.is_last and not self.owed):
            connection = "close"
        body, status = response.body, response.status
        try:
            head = door.heads.sized(status, response.content_type, len(body), response.headers, request.id, connection)
        except ValueError as error:
            self._put(request, self._answer_to(request, error), keep_alive, is_old, began)
            return
        if not has_body(request.method, status):
            body = b""
        if len(body) <= _JOINED_BYTES_MAX:
            self._out.append(head + body)
        else:
            self._out += (head, body)
            self.flush()  # only this shows whether there is room for more
        self.since = door.note(request, status, began)

    # Responses without a known end

    def _stream(self, owed: Owed, streamed: Streamed) -> None:
        door, request, exchange = self._door, owed.request, self._exchange
        if owed.is_old:
            owed.keep_alive, exchange.is_last = False, True  # the body ends with the connection
        connection = "" if owed.keep_alive else "close"
        try:
            head = door.heads.streamed(streamed, request.id, connection, chunked=not owed.is_old)
        except ValueError as error:
            start(close_chunks(streamed), door.loop)
            owed.answer = self._answer_to(request, error)
            return
        self._out.append(head)
        self.flush()
        self.since = door.note(request, streamed.status, owed.began)
        with_body = has_body(request.method, streamed.status)
        sending = send_chunks(exchange, streamed, chunked=not owed.is_old) if with_body else close_chunks(streamed)
        outcome = start(sending, door.loop)
        if isinstance(outcome, tuple):
            self.owed.popleft()
        else:
            self.streaming = outcome
            outcome.add_done_callback(self._on_streamed)

    def _on_streamed(self, task: asyncio.Task[None]) -> None:
        self.streaming = None
        if self._exchange.is_gone:
            return
        self.owed.popleft()
        if task.cancelled():
            self._exchange.abort()  # so that the client does not mistake a partial body for a complete one
        else:
            self._exchange.advance()

    def _converse(self, owed: Owed, upgraded: Upgraded) -> None:
        from headrace.http.websocket import Conversation, accepted  # rarely used, and slow to import

        door, exchange = self._door, self._exchange
        headers = accepted(owed.request) if exchange.reader.wants_websocket(owed.request) else None
        if headers is None:
            owed.answer = refusals.upgrade_required().response()
            return
        self._out.append(door.heads.upgraded(headers, owed.request.id))
        self.flush()
        self.since = door.note(owed.request, 101, owed.began)
        self.conversation = conversation = Conversation(exchange, door.limits, door.clock)
        owed.running = door.loop.create_task(conversation.run(upgraded.talk))
        conversation.take_in(exchange.reader.trailing)
        exchange.resume_reading()
