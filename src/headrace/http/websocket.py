"""A WebSocket connection: receive and send complete messages, and close it properly.

- The size of messages is limited, and so are unread messages: reading pauses until they are received.
- A read of 256 KiB can hold 40,000 frames, and parsing them in one go would block the event loop for seconds. So the
  parser handles at most `_FRAMES_PER_WAKEUP_MAX` frames per turn of the loop; reading is paused until it has caught up.
- One turn answers only the latest ping, as RFC 6455 (5.5.2) permits, so it makes at most one write.
- A client that sends more control frames or empty frames per second than it can need is closed with 1008.
- After a violation of the protocol or of that limit, what the client sends is discarded without being parsed.
- A silent client is sent a ping, and is disconnected if it stays silent.
- When the client closes the WebSocket, `websocket_handler` gets a moment to return.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections import deque
from collections.abc import Awaitable, Callable
from hashlib import sha1
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from headrace.http.limits import HttpLimits
from headrace.http.message import Header, Request, WebSocket
from headrace.runtime.clock import Clock

if TYPE_CHECKING:
    from headrace.http.connection import HttpConnection

log = logging.getLogger(__name__)

_UNREAD_MESSAGES_MAX = 32
_EMPTY_FRAGMENTS_MAX = 100  # per message
_FRAMES_PER_WAKEUP_MAX = 100  # frames of one connection before yielding to others
_IDLE_FRAMES_PER_SECOND_MAX = 300  # control frames and frames without data
_KEY_SALT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_NORMAL, _GOING_AWAY, _POLICY, _TOO_BIG, _FAILED = 1000, 1001, 1008, 1009, 1011
_REASON_BYTES_MAX = 123  # the limit of a control frame


def handshake_headers(request: Request) -> list[Header] | None:
    """Return the headers that accept the upgrade, or None if the request is not a valid upgrade."""
    key = request.headers.get("sec-websocket-key")
    if request.method != "GET" or not key or request.headers.get("sec-websocket-version") != "13":
        return None
    proof = b64encode(sha1(key.encode("latin-1") + _KEY_SALT, usedforsecurity=False).digest())
    return [("sec-websocket-accept", proof.decode("ascii"))]


class WebSocketConnection:
    """The implementation of `WebSocket` that is passed to `websocket_handler`."""

    def __init__(self, connection: HttpConnection, limits: HttpLimits, clock: Clock) -> None:
        self._connection = connection
        self._limits = limits
        self._clock = clock
        self._frames = Connection(ConnectionType.SERVER)
        self._messages: deque[str | bytes] = deque()
        self._unread_bytes = 0
        self._partial: Any = None  # the received part of the next message: a StringIO or a BytesIO
        self._partial_bytes = 0
        self._empty_fragments = 0
        self._unanswered_ping: Ping | None = None
        self._idle_frames = 0  # since `_idle_since`
        self._idle_since = 0.0
        self._awaits_reader = False  # the parser has unparsed data
        self._is_parsing = False  # a turn of the parser is running or scheduled
        self._is_discarding = False  # further input is not parsed
        self._receiver: asyncio.Future[None] | None = None
        self._last_received_at = clock.monotonic()
        self._is_pinged = False
        self._is_finished = False  # one side has closed the WebSocket, or is gone
        self._handler_returned = False
        self._finished_at = 0.0

    async def run(self, websocket_handler: Callable[[WebSocket], Awaitable[None]]) -> None:
        code = _NORMAL
        try:
            await websocket_handler(self)
        except ConnectionError:
            pass  # `websocket_handler` tried to send after the end
        except Exception:
            log.exception("WebSocket handler failed peer=%s", self._connection.host)
            code = _FAILED
        finally:
            self._handler_returned = True
            self._send_close(code, "")

    # For `websocket_handler`

    async def receive(self) -> str | bytes | None:
        while not self._messages:
            if self._is_finished:
                return None
            assert self._receiver is None, "concurrent calls of receive"
            self._receiver = asyncio.get_running_loop().create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None
        message = self._messages.popleft()
        self._unread_bytes -= len(message)
        self.resume_parsing()
        return message

    async def send(self, text: str) -> None:
        if self._is_finished:
            raise ConnectionResetError("the peer has closed the WebSocket")
        self._connection.write([self._frames.send(TextMessage(data=text))])
        await self._connection.wait_writable()

    async def close(self, code: int = _NORMAL, reason: str = "") -> None:
        self._send_close(code, reason)

    # For the connection

    def receive_data(self, data: bytes) -> None:
        self._last_received_at = self._clock.monotonic()
        self._is_pinged = False
        if self._is_discarding or self._frames.state is ConnectionState.CLOSED:
            return
        self._frames.receive_data(data)
        self._awaits_reader = True
        if self._is_parsing:
            self.resume_parsing()
        else:
            self._parse()

    def resume_parsing(self) -> None:
        """Resume reading and parsing if there is room for messages."""
        if not self._has_room():
            self._connection.pause_reading()
        elif not self._awaits_reader:
            self._connection.resume_reading()
        else:
            self._connection.pause_reading()
            if not self._is_parsing:
                self._is_parsing = True
                asyncio.get_running_loop().call_soon(self._parse)  # yield to other connections first

    def close_going_away(self) -> None:
        self._send_close(_GOING_AWAY, "the server is stopping")

    def on_connection_lost(self) -> None:
        self._is_finished = self._is_discarding = True
        self._wake()

    def sweep(self, now: float) -> None:
        if self._is_finished:
            if now - self._finished_at > self._limits.linger_seconds:
                self._connection.abort()
            return
        silent = now - self._last_received_at
        if silent > 2 * self._limits.ping_seconds:
            self._connection.abort()
        elif silent > self._limits.ping_seconds and not self._is_pinged:
            self._is_pinged = True
            self._connection.write([self._frames.send(Ping())])

    def _parse(self) -> None:
        """One turn of the parser."""
        self._is_parsing = True  # so that calls from here do not schedule another turn
        self._awaits_reader = not self._parse_frames()
        self._is_parsing = False
        self._answer_ping()
        self.resume_parsing()

    def _parse_frames(self) -> bool:
        """Parse frames; return whether all input is parsed or discarded. wsproto parses a frame when its event is
        requested."""
        events = self._frames.events()
        for _ in range(_FRAMES_PER_WAKEUP_MAX):
            if self._is_discarding:
                return True
            if not self._has_room():
                return False
            event = next(events, None)
            if event is None:
                return True
            self._on_event(event)
        return self._is_discarding

    def _on_event(self, event: Event) -> None:
        if isinstance(event, TextMessage | BytesMessage):
            if event.frame_finished and not event.data:
                self._count_idle_frame()
            if not self._is_finished:
                self._on_fragment(event)
        elif isinstance(event, CloseConnection):
            if self._frames.state is ConnectionState.REMOTE_CLOSING:
                self._connection.write([self._frames.send(event.response())])
            elif self._frames.state is not ConnectionState.CLOSED:
                self._close_with_error(event.code, event.reason or "")  # the parser cannot continue
            self._finish()
        else:
            self._count_idle_frame()
            if isinstance(event, Ping):
                self._unanswered_ping = event

    def _on_fragment(self, event: TextMessage | BytesMessage) -> None:
        """Join fragments as they arrive: a list of one-byte fragments would take many times the size of the message."""
        if self._partial is None:
            self._partial = StringIO() if isinstance(event, TextMessage) else BytesIO()
        self._partial.write(event.data)
        self._partial_bytes += len(event.data)
        if not event.data and event.frame_finished:
            self._empty_fragments += 1
        if self._partial_bytes > self._limits.message_bytes_max:
            self._partial = None
            self._send_close(_TOO_BIG, f"the maximum message size is {self._limits.message_bytes_max} bytes")
        elif self._empty_fragments > _EMPTY_FRAGMENTS_MAX:
            self._partial = None
            self._close_with_error(_POLICY, f"a message may have up to {_EMPTY_FRAGMENTS_MAX} empty fragments")
        elif event.message_finished:
            self._messages.append(self._partial.getvalue())
            self._unread_bytes += self._partial_bytes
            self._partial = None
            self._partial_bytes = self._empty_fragments = 0
            self._wake()

    def _count_idle_frame(self) -> None:
        now = self._clock.monotonic()
        if now - self._idle_since >= 1.0:
            self._idle_since, self._idle_frames = now, 0
        self._idle_frames += 1
        if self._idle_frames > _IDLE_FRAMES_PER_SECOND_MAX:
            limit = f"up to {_IDLE_FRAMES_PER_SECOND_MAX} control frames and empty frames per second are allowed"
            self._close_with_error(_POLICY, limit)

    def _answer_ping(self) -> None:
        ping, self._unanswered_ping = self._unanswered_ping, None
        if ping is not None and self._frames.state is ConnectionState.OPEN:
            self._connection.write([self._frames.send(Pong(payload=ping.payload))])

    def _close_with_error(self, code: int, reason: str) -> None:
        """Close, and stop parsing: otherwise a flood of frames would use CPU time until the connection ends."""
        self._is_discarding = True
        self._send_close(code, reason)

    def _send_close(self, code: int, reason: str) -> None:
        if self._frames.state is ConnectionState.OPEN and not self._connection.is_gone:
            shown = reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
            self._connection.write([self._frames.send(CloseConnection(code=code, reason=shown or None))])
        self._finish()

    def _finish(self) -> None:
        if not self._is_finished:
            self._is_finished = True
            self._finished_at = self._clock.monotonic()
            self._wake()
            self.resume_parsing()
        if self._handler_returned and self._frames.state is ConnectionState.CLOSED:
            self._connection.end()

    def _wake(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    def _has_room(self) -> bool:
        """Whether to read on. Reading continues after a close frame was sent, because the peer's close frame
        follows."""
        is_full = len(self._messages) >= _UNREAD_MESSAGES_MAX or self._unread_bytes > self._limits.message_bytes_max
        return self._is_finished or not (is_full or self._connection.is_write_blocked)
