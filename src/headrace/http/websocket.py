"""A WebSocket connection: receive and send complete messages, and close it properly.

- The size of messages is limited, and so are unread messages: reading pauses until they are received.
- A read of 256 KiB can hold 40,000 frames, and parsing them in one go would block the event loop for seconds. So the
  parser handles at most `_FRAMES_PER_TURN_MAX` frames per turn of the loop; reading is paused until it has caught up.
- One turn answers only the latest ping, as RFC 6455 (5.5.2) permits, so it makes at most one write.
- A client that sends more control frames or empty frames per second than it can need is closed with 1008.
- After a violation of the protocol or of that limit, what the client sends is discarded without being parsed.
- A silent client is sent a ping, and is disconnected if it stays silent.
- When the client closes the WebSocket, `talk` gets a moment to return.
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
    from headrace.http.exchange import Exchange

log = logging.getLogger(__name__)

_UNREAD_MESSAGES_MAX = 32
_EMPTY_FRAGMENTS_MAX = 100  # per message
_FRAMES_PER_TURN_MAX = 100  # frames of one connection before yielding to others
_IDLE_FRAMES_PER_SECOND_MAX = 300  # control frames and frames without data
_KEY_SALT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_NORMAL, _GOING_AWAY, _POLICY, _TOO_BIG, _FAILED = 1000, 1001, 1008, 1009, 1011
_REASON_BYTES_MAX = 123  # the limit of a control frame


def accepted(request: Request) -> list[Header] | None:
    """Return the headers that accept the upgrade, or None if the request is not a valid upgrade."""
    key = request.headers.get("sec-websocket-key")
    if request.method != "GET" or not key or request.headers.get("sec-websocket-version") != "13":
        return None
    proof = b64encode(sha1(key.encode("latin-1") + _KEY_SALT, usedforsecurity=False).digest())
    return [("sec-websocket-accept", proof.decode("ascii"))]


class Conversation:
    """The implementation of `WebSocket` that is passed to `talk`."""

    def __init__(self, exchange: Exchange, limits: HttpLimits, clock: Clock) -> None:
        self._exchange = exchange
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
        self._is_behind = False  # the parser has unparsed data
        self._is_parsing = False  # a turn of the parser is running or scheduled
        self._is_discarding = False  # further input is not parsed
        self._waiting: asyncio.Future[None] | None = None
        self._heard = clock.monotonic()
        self._is_pinged = False
        self._is_over = False  # one side has closed the WebSocket, or is gone
        self._has_talked = False
        self._over_since = 0.0

    async def run(self, talk: Callable[[WebSocket], Awaitable[None]]) -> None:
        code = _NORMAL
        try:
            await talk(self)
        except ConnectionError:
            pass  # `talk` tried to send after the end
        except Exception:
            log.exception("WebSocket handler failed peer=%s", self._exchange.host)
            code = _FAILED
        finally:
            self._has_talked = True
            self._say_close(code, "")

    # For `talk`

    async def receive(self) -> str | bytes | None:
        while not self._messages:
            if self._is_over:
                return None
            assert self._waiting is None, "concurrent calls of receive"
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        message = self._messages.popleft()
        self._unread_bytes -= len(message)
        self.go_on()
        return message

    async def send(self, text: str) -> None:
        if self._is_over:
            raise ConnectionResetError("the peer has closed the WebSocket")
        self._exchange.write([self._frames.send(TextMessage(data=text))])
        await self._exchange.room()

    async def close(self, code: int = _NORMAL, reason: str = "") -> None:
        self._say_close(code, reason)

    # For the exchange

    def take_in(self, data: bytes) -> None:
        self._heard = self._clock.monotonic()
        self._is_pinged = False
        if self._is_discarding or self._frames.state is ConnectionState.CLOSED:
            return
        self._frames.receive_data(data)
        self._is_behind = True
        if self._is_parsing:
            self.go_on()
        else:
            self._parse()

    def go_on(self) -> None:
        """Resume reading and parsing if there is room for messages."""
        if not self._has_room():
            self._exchange.pause_reading()
        elif not self._is_behind:
            self._exchange.resume_reading()
        else:
            self._exchange.pause_reading()
            if not self._is_parsing:
                self._is_parsing = True
                asyncio.get_running_loop().call_soon(self._parse)  # yield to other connections first

    def go_away(self) -> None:
        self._say_close(_GOING_AWAY, "the server is stopping")

    def lose(self) -> None:
        self._is_over = self._is_discarding = True
        self._wake()

    def sweep(self, now: float) -> None:
        if self._is_over:
            if now - self._over_since > self._limits.linger_seconds:
                self._exchange.abort()
            return
        silent = now - self._heard
        if silent > 2 * self._limits.ping_seconds:
            self._exchange.abort()
        elif silent > self._limits.ping_seconds and not self._is_pinged:
            self._is_pinged = True
            self._exchange.write([self._frames.send(Ping())])

    def _parse(self) -> None:
        """One turn of the parser."""
        self._is_parsing = True  # so that calls from here do not schedule another turn
        self._is_behind = not self._parse_frames()
        self._is_parsing = False
        self._answer_ping()
        self.go_on()

    def _parse_frames(self) -> bool:
        """Parse frames; return whether all input is parsed or discarded. wsproto parses a frame when its event is
        requested."""
        events = self._frames.events()
        for _ in range(_FRAMES_PER_TURN_MAX):
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
            if not self._is_over:
                self._on_piece(event)
        elif isinstance(event, CloseConnection):
            if self._frames.state is ConnectionState.REMOTE_CLOSING:
                self._exchange.write([self._frames.send(event.response())])
            elif self._frames.state is not ConnectionState.CLOSED:
                self._fail(event.code, event.reason or "")  # the parser cannot continue
            self._be_over()
        else:
            self._count_idle_frame()
            if isinstance(event, Ping):
                self._unanswered_ping = event

    def _on_piece(self, event: TextMessage | BytesMessage) -> None:
        """Join fragments as they arrive: a list of one-byte fragments would take many times the size of the message."""
        if self._partial is None:
            self._partial = StringIO() if isinstance(event, TextMessage) else BytesIO()
        self._partial.write(event.data)
        self._partial_bytes += len(event.data)
        if not event.data and event.frame_finished:
            self._empty_fragments += 1
        if self._partial_bytes > self._limits.message_bytes_max:
            self._partial = None
            self._say_close(_TOO_BIG, f"the maximum message size is {self._limits.message_bytes_max} bytes")
        elif self._empty_fragments > _EMPTY_FRAGMENTS_MAX:
            self._partial = None
            self._fail(_POLICY, f"a message may have up to {_EMPTY_FRAGMENTS_MAX} empty fragments")
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
            self._fail(_POLICY, limit)

    def _answer_ping(self) -> None:
        ping, self._unanswered_ping = self._unanswered_ping, None
        if ping is not None and self._frames.state is ConnectionState.OPEN:
            self._exchange.write([self._frames.send(Pong(payload=ping.payload))])

    def _fail(self, code: int, reason: str) -> None:
        """Close, and stop parsing: otherwise a flood of frames would use CPU time until the connection ends."""
        self._is_discarding = True
        self._say_close(code, reason)

    def _say_close(self, code: int, reason: str) -> None:
        if self._frames.state is ConnectionState.OPEN and not self._exchange.is_gone:
            shown = reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
            self._exchange.write([self._frames.send(CloseConnection(code=code, reason=shown or None))])
        self._be_over()

    def _be_over(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._over_since = self._clock.monotonic()
            self._wake()
            self.go_on()
        if self._has_talked and self._frames.state is ConnectionState.CLOSED:
            self._exchange.end()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _has_room(self) -> bool:
        """Whether to read on. Reading continues after a close frame was sent, because the peer's close frame
        follows."""
        is_full = len(self._messages) >= _UNREAD_MESSAGES_MAX or self._unread_bytes > self._limits.message_bytes_max
        return self._is_over or not (is_full or self._exchange.is_full)
