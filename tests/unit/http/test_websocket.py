"""WebSockets, with wsproto's client: messages, limits, pings, and closing by either side."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.http.http_harness import HttpHarness, HttpTestClient, settled
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from headrace.http.message import WebSocket

UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
VERSION = "Sec-WebSocket-Version: 13\r\n"


class Caller(HttpTestClient):
    """A client with an accepted WebSocket."""

    def __init__(self, harness: HttpHarness, path: str = "/socket") -> None:
        super().__init__(harness)
        self._frames = Connection(ConnectionType.CLIENT)
        self.asks(path, headers=UPGRADE + KEY + VERSION)
        self._seen = 0

    def granted(self) -> bytes:
        head, _, _ = self.line.written.partition(b"\r\n\r\n")
        self._seen = len(head) + 4
        return head

    def says(self, event: Event) -> None:
        self.sends(self._frames.send(event))

    def heard(self) -> list[Event]:
        new, self._seen = self.line.written[self._seen :], len(self.line.written)
        self._frames.receive_data(new)
        return list(self._frames.events())


async def call(harness: HttpHarness) -> Caller:
    caller = Caller(harness)
    await settled()
    assert caller.granted().startswith(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n")
    return caller


async def test_the_accept_key_follows_the_rfc() -> None:
    caller = Caller(HttpHarness())
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in caller.granted()


async def test_messages_are_complete_in_both_directions() -> None:
    caller = await call(HttpHarness())
    caller.says(TextMessage(data="on", message_finished=False))
    caller.says(TextMessage(data="e"))
    caller.says(BytesMessage(data=b"two"))
    await settled()
    assert [event.data for event in caller.heard() if isinstance(event, TextMessage)] == ["got 'one'", "got b'two'"]


async def test_frames_right_after_the_request_are_not_lost() -> None:
    harness = HttpHarness()
    http_client = harness.http_client()
    frame = Connection(ConnectionType.CLIENT).send(TextMessage(data="early"))
    http_client.sends(f"GET /socket HTTP/1.1\r\nHost: x\r\n{UPGRADE}{KEY}{VERSION}\r\n".encode() + frame)
    await settled()
    assert http_client.line.written.endswith(b"got 'early'")


@pytest.mark.parametrize("path", ["/socket", "/wait/socket"])
async def test_frames_after_the_request_that_exceed_a_slice_are_not_lost(path: str) -> None:
    harness = HttpHarness()
    http_client = harness.http_client()
    frame = Connection(ConnectionType.CLIENT).send(TextMessage(data="early" * 1000))
    http_client.sends(f"GET {path} HTTP/1.1\r\nHost: x\r\n{UPGRADE}{KEY}{VERSION}\r\n".encode() + frame)
    harness.script.open("socket")
    await settled()
    assert http_client.line.written.endswith(b"got '" + b"early" * 1000 + b"'")


async def test_nothing_is_read_until_the_upgrade_is_accepted() -> None:
    harness = HttpHarness()
    caller = Caller(harness, "/wait/socket")
    await settled()
    assert not caller.line.reads
    harness.script.open("socket")
    await settled()
    assert caller.line.reads
    assert caller.granted().startswith(b"HTTP/1.1 101")


@pytest.mark.parametrize(
    "headers", ["", UPGRADE + KEY, UPGRADE + VERSION, UPGRADE + KEY + "Sec-WebSocket-Version: 8\r\n"]
)
async def test_a_missing_or_invalid_upgrade_is_a_426(headers: str) -> None:
    response = HttpHarness().http_client().asks("/socket", headers=headers).answer()
    assert (response.status, response.code) == (426, "upgrade_required")
    assert (response.headers["upgrade"], response.headers["sec-websocket-version"]) == ("websocket", "13")


async def test_an_upgrade_of_another_route_is_a_normal_response_that_closes() -> None:
    http_client = HttpHarness().http_client().asks("/a", headers=UPGRADE + KEY + VERSION)
    assert http_client.answer().status == 200
    assert http_client.line.closed


async def test_a_ping_gets_a_pong() -> None:
    caller = await call(HttpHarness())
    caller.says(Ping(payload=b"x"))
    assert caller.heard() == [Pong(payload=b"x")]


async def test_a_close_by_the_client_ends_the_handler_and_the_connection() -> None:
    caller = await call(HttpHarness())
    caller.says(CloseConnection(code=1000))
    assert caller.heard() == [CloseConnection(code=1000, reason="")]
    await settled()
    assert caller.line.closed
    assert not caller.line.aborted


async def test_the_websocket_is_closed_when_the_handler_returns() -> None:
    harness = HttpHarness()

    async def websocket_handler(socket: WebSocket) -> None:
        await socket.send("bye")

    harness.script.websocket_handler = websocket_handler
    caller = await call(harness)
    received, closing = caller.heard()
    assert isinstance(received, TextMessage)
    assert isinstance(closing, CloseConnection)
    assert closing.code == 1000
    assert not caller.is_hung_up_on
    caller.says(closing.response())
    assert caller.line.closed
    assert not caller.line.aborted


async def test_a_client_that_does_not_reply_to_a_close_is_disconnected() -> None:
    harness = HttpHarness(linger_seconds=2.0)

    async def websocket_handler(socket: WebSocket) -> None:
        await socket.close(4000, "enough" * 100)

    harness.script.websocket_handler = websocket_handler
    caller = await call(harness)
    (closing,) = caller.heard()
    assert isinstance(closing, CloseConnection)
    assert (closing.code, len(closing.reason or "")) == (4000, 123)
    harness.wait(3)
    assert caller.line.aborted


async def test_a_failing_handler_closes_with_1011(caplog: pytest.LogCaptureFixture) -> None:
    harness = HttpHarness()

    async def websocket_handler(socket: WebSocket) -> None:
        raise ZeroDivisionError

    harness.script.websocket_handler = websocket_handler
    caller = await call(harness)
    (closing,) = caller.heard()
    assert isinstance(closing, CloseConnection)
    assert closing.code == 1011
    assert "ZeroDivisionError" in caplog.text


async def test_the_handler_runs_in_a_task() -> None:
    harness = HttpHarness()
    tasks: list[Any] = []

    async def websocket_handler(socket: WebSocket) -> None:
        tasks.append(asyncio.current_task())

    harness.script.websocket_handler = websocket_handler
    await call(harness)
    assert tasks[0] is not None


async def test_the_handler_is_cancelled_when_the_client_disconnects() -> None:
    harness = HttpHarness()
    ends: list[str] = []

    async def websocket_handler(socket: WebSocket) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    harness.script.websocket_handler = websocket_handler
    caller = await call(harness)
    caller.line.lose()
    await settled()
    assert ends == ["cancelled"]


async def test_a_handler_that_does_not_return_after_a_close_is_cancelled() -> None:
    harness = HttpHarness(linger_seconds=2.0)

    async def websocket_handler(socket: WebSocket) -> None:
        await asyncio.Event().wait()

    harness.script.websocket_handler = websocket_handler
    caller = await call(harness)
    caller.says(CloseConnection(code=1000))
    harness.wait(1)
    assert not caller.line.closed
    harness.wait(2)
    await settled()
    assert caller.line.aborted
    assert not harness.listener.connections


async def test_sending_after_a_close_is_a_connection_error() -> None:
    harness = HttpHarness()
    errors: list[str] = []

    async def websocket_handler(socket: WebSocket) -> None:
        assert await socket.receive() is None
        try:
            await socket.send("x")
        except ConnectionError as error:
            errors.append(str(error))
            raise

    harness.script.websocket_handler = websocket_handler
    caller = await call(harness)
    caller.says(CloseConnection(code=1000))
    await settled()
    assert errors == ["the peer has closed the WebSocket"]
    assert caller.line.closed


async def test_too_many_empty_fragments_close_the_websocket() -> None:
    caller = await call(HttpHarness())
    for _ in range(200):
        if not caller.is_hung_up_on:
            caller.says(TextMessage(data="", message_finished=False))
    assert [event.code for event in caller.heard() if isinstance(event, CloseConnection)] == [1008]


@pytest.mark.parametrize("pieces", [1, 10])
async def test_a_message_above_the_limit_closes_the_websocket(pieces: int) -> None:
    caller = await call(HttpHarness(message_bytes_max=1000))
    for _ in range(pieces):
        caller.says(TextMessage(data="x" * (1001 // pieces + 1), message_finished=pieces == 1))
    (closing,) = caller.heard()
    assert isinstance(closing, CloseConnection)
    assert closing.code == 1009


async def test_the_size_limit_applies_to_each_message() -> None:
    caller = await call(HttpHarness(message_bytes_max=1000))
    for _ in range(10):
        caller.says(TextMessage(data="x" * 900))
        await settled()
    assert [type(event) for event in caller.heard()] == [TextMessage] * 10


async def test_invalid_frames_close_the_websocket() -> None:
    caller = await call(HttpHarness())
    caller.sends(b"\xff" * 100)
    (closing,) = caller.heard()
    assert isinstance(closing, CloseConnection)
    assert closing.code == 1002
    caller.sends(b"\xff" * 100)
    await settled()


async def test_reading_stops_while_messages_are_not_received() -> None:
    harness = HttpHarness()
    fetch = asyncio.Event()
    fetched: list[Any] = []

    async def websocket_handler(socket: WebSocket) -> None:
        await fetch.wait()
        while (message := await socket.receive()) is not None:
            fetched.append(message)

    harness.script.websocket_handler = websocket_handler
    caller = await call(harness)
    sent = 0
    while caller.line.reads:
        caller.says(TextMessage(data="x"))
        sent += 1
    assert sent < 100
    fetch.set()
    await settled()
    assert caller.line.reads
    assert len(fetched) == sent


async def test_sending_waits_while_the_client_does_not_read() -> None:
    harness = HttpHarness()
    sent: list[int] = []

    async def websocket_handler(socket: WebSocket) -> None:
        for number in range(10):
            await socket.send("x" * 50_000)
            sent.append(number)

    harness.script.websocket_handler = websocket_handler
    caller = Caller(harness)
    caller.line.is_taken = False
    await settled()
    assert len(sent) < 3
    caller.line.is_taken = True
    caller.line.take()
    await settled()
    assert len(sent) == 10


async def test_a_silent_client_gets_a_ping_and_is_then_disconnected() -> None:
    harness = HttpHarness(ping_seconds=20.0)
    caller = await call(harness)
    harness.wait(21)
    harness.wait(1)
    (ping,) = caller.heard()
    assert isinstance(ping, Ping)
    caller.says(Pong(payload=b""))
    harness.wait(21)
    assert not caller.line.closed
    harness.wait(20)
    assert caller.line.aborted


async def test_a_half_closed_websocket_ends() -> None:
    caller = await call(HttpHarness())
    caller.sends_eof()
    assert caller.line.closed


async def test_draining_closes_with_going_away() -> None:
    harness = HttpHarness()
    caller = await call(harness)
    draining = asyncio.get_running_loop().create_task(harness.listener.drain(30))
    await settled()
    (closing,) = caller.heard()
    assert isinstance(closing, CloseConnection)
    assert closing.code == 1001
    caller.says(closing.response())
    await draining
    assert caller.line.closed
