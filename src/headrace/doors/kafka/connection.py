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
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.broker.context import RequestContext
from headrace.doors.kafka.frames import FrameReader
from headrace.doors.kafka.outbox import Outbox, release
from headrace.model.errors import HeadraceError, MalformedFrame
from headrace.runtime.eager import Errand, start, start_errand
from headrace.runtime.network import Link
from headrace.wire.codec import decode, encode
from headrace.wire.header import encode_response_header, parse_request_header

if TYPE_CHECKING:
    from headrace.doors.kafka.listener import KafkaDoor

log = logging.getLogger(__name__)

_ANSWERS_OWED_MAX = 256
_UNSENT_BYTES_MAX = 1 << 20
_TRICKLE_BYTES_MIN = 16_384  # progress that an unfinished frame must make within `stalled_seconds`
_READS_PER_TURN_MAX = 8  # reads of one large frame before yielding to other connections

Running: TypeAlias = asyncio.Task[Any] | Errand


class Answer:
    """The position of a response in the response order; empty until its request has completed."""

    __slots__ = ("chunks", "correlation_id", "handler", "is_late", "version")

    def __init__(self, handler: Any, version: int, correlation_id: int) -> None:
        self.handler = handler
        self.version = version
        self.correlation_id = correlation_id
        self.chunks: list[Any] | None = None
        self.is_late = False  # the request did not complete in its first step

    def fill(self, response: Any) -> None:
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
        "_answers",
        "_context",
        "_door",
        "_farewells",
        "_frames",
        "_held",
        "_link",
        "_outbox",
        "_reading",
        "_running",
        "_settling",
        "_trickled",
        "_waits_for_budget",
        "client_host",
        "closed",
        "last_progress",
    )

    def __init__(self, link: Link, door: KafkaDoor) -> None:
        self._link = link
        self._door = door
        self._frames = FrameReader(door.scratch, door.budget, door.limits.request_bytes_max)
        self._outbox = Outbox()
        self._answers: deque[Answer] = deque()
        self._context: RequestContext | None = None  # of the last request; the next one usually has the same
        self._farewells: dict[object, Callable[[], None]] = {}
        self._running: dict[Running, bool] = {}  # running requests, and whether they are read-only
        self._held = False
        self._reading = True
        self._settling = False
        self._waits_for_budget = False
        self._trickled = 0  # bytes received since the last progress
        self.closed = False
        self.client_host = link.peer.rpartition(":")[0]
        self.last_progress = door.clock.monotonic()
        link.when_readable(self._on_readable)

    @property
    def owes_progress(self) -> bool:
        """Whether the peer has yet to send the rest of a frame, or to read the rest of a response."""
        return bool(self._outbox) or (self._frames.unfinished and self._reading)

    @property
    def idle(self) -> bool:
        return not self._answers and not self._outbox

    @property
    def running(self) -> Iterable[Running]:
        """The requests in progress."""
        return self._running

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for running, only_reads in self._running.items():
            if only_reads and isinstance(running, asyncio.Task):
                running.cancel()
            else:
                self._door.leave_running(running)
        for answer in self._answers:
            release(answer.chunks or ())
        self._answers.clear()
        self._outbox.clear()
        self._frames.release()
        self._link.close()
        self._door.forget(self)
        for farewell in self._farewells.values():
            farewell()

    # Receiving

    def _on_readable(self) -> None:
        frames = self._frames
        try:
            for _ in range(_READS_PER_TURN_MAX):
                room = frames.room()
                if room is None:
                    self._wait_for_budget()
                    break
                count = self._link.receive_into(room)
                if count == 0:
                    self.close()
                    return
                self._trickled += count
                if not frames.received(count, self._serve):
                    if self.closed:
                        return
                    self._stop_reading()
                    break
                if not frames.unfinished:
                    break
        except BlockingIOError:
            pass
        except MalformedFrame as error:
            self._refuse(error)
            return
        except OSError:
            self.close()
            return
        if self._trickled >= _TRICKLE_BYTES_MIN or not frames.unfinished:
            # A few bytes now and then do not count as progress; otherwise a slow peer could hold a buffer forever.
            self._trickled = 0
            self.last_progress = self._door.clock.monotonic()
        if self._answers and not self._answers[-1].handler.only_reads:
            self._settle_soon()  # deferred: fetches that this write has completed respond first
        else:
            self._settle()

    def _serve(self, frame: memoryview) -> bool:
        """Start the request in this frame; return whether the next frame may be served."""
        door = self._door
        header, position = parse_request_header(frame)
        handler, version = door.handlers.find(header.api_key, header.api_version)
        request = decode(handler.api.request, header.api_version, frame, position) if version >= 0 else None
        answer = Answer(handler, max(version, 0), header.correlation_id)
        self._answers.append(answer)
        context = self._context
        if context is None or context.version != version or context.client_id != header.client_id:
            context = self._context = RequestContext(
                version, header.client_id, self.client_host, door.name, self._hold, self.close, self._farewells
            )
        carried_out = self._carry_out(request, context, answer)
        running: Running | None
        if handler.is_errand:
            running = start_errand(carried_out, door.loop)
        else:
            outcome = start(carried_out, door.loop)
            running = None if isinstance(outcome, tuple) else outcome
        if running is not None:
            answer.is_late = True
            self._running[running] = handler.only_reads
            running.add_done_callback(self._running.pop)
        return not self._held and len(self._answers) < _ANSWERS_OWED_MAX and not self.closed

    async def _carry_out(self, request: Any, context: RequestContext, answer: Answer) -> None:
        handler, clock = answer.handler, self._door.clock
        began = clock.monotonic()
        try:
            answer.fill(await handler.handle(request, context))
        except Exception as error:
            self._fail(answer, error)
        if self.closed:
            release(answer.chunks or ())
            return
        handler.time.observe(clock.monotonic() - began)
        if not answer.is_late:
            return  # the frame reading loop sends the response
        if handler.only_reads:
            self._send_answered()  # a fetching client waits for this response: there is nothing to batch it with
        # Do nothing else here: a request started from this task would run as a part of it.
        if not handler.only_reads or not self._reading:
            self._settle_soon()

    def _hold(self, held: bool) -> None:
        self._held = held
        if not held and not self.closed:
            self._settle_soon()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._link.when_readable(None)

    def _wait_for_budget(self) -> None:
        self._stop_reading()
        if not self._waits_for_budget:
            self._waits_for_budget = True
            self._door.budget.when_released(self._on_budget)

    def _on_budget(self) -> None:
        self._waits_for_budget = False
        if not self.closed:
            self._door.loop.call_soon(self._settle)

    # Sending

    def _settle_soon(self) -> None:
        # Many requests complete with the same fsync: send their responses in one write.
        if not self._settling:
            self._settling = True
            self._door.loop.call_soon(self._settle)

    def _settle(self) -> None:
        """Send completed responses, then resume reading if possible."""
        self._settling = False
        if self.closed:
            return
        self._send_answered()
        if self._may_read() and not self._reading:
            self._resume_reading()

    def _send_answered(self) -> None:
        answers, outbox = self._answers, self._outbox
        while answers and (chunks := answers[0].chunks) is not None:
            answers.popleft()
            outbox.put(chunks)
        if outbox:
            self._send()

    def _send(self) -> None:
        try:
            sent = self._outbox.send(self._link)
        except (OSError, HeadraceError):  # the peer is gone, or the log file cannot be read
            self.close()
            return
        if sent:
            self.last_progress = self._door.clock.monotonic()
        if self._outbox:
            self._link.when_writable(self._on_writable)
            if self._outbox.memory_bytes > _UNSENT_BYTES_MAX:
                self._stop_reading()

    def _on_writable(self) -> None:
        self._send()
        if not self.closed and not self._outbox:
            self._link.when_writable(None)
            self._settle()

    def _may_read(self) -> bool:
        return not (
            self.closed
            or self._held
            or self._waits_for_budget
            or len(self._answers) >= _ANSWERS_OWED_MAX
            or self._outbox.memory_bytes > _UNSENT_BYTES_MAX
        )

    def _resume_reading(self) -> None:
        try:
            served_all = self._frames.resume(self._serve)
        except MalformedFrame as error:
            self._refuse(error)
            return
        if self.closed:
            return
        if served_all:
            self._reading = True
            self._link.when_readable(self._on_readable)
        if self._answers and self._answers[0].chunks is not None:
            # Deferred: yield to other connections, however many requests this client has pipelined.
            self._settle_soon()

    # Failing

    def _refuse(self, error: HeadraceError) -> None:
        self._door.refused(self.client_host, error)
        self.close()

    def _fail(self, answer: Answer, error: BaseException) -> None:
        """Handle an exception of a handler, which is a bug in Headrace. There is no response for it, so the connection
        is closed."""
        log.error("request failed api=%s peer=%s", answer.handler.api.name, self.client_host, exc_info=error)
        self._door.failures += 1
        self.close()
