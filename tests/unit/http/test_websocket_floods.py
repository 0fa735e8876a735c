"""Floods of WebSocket frames: a turn of the loop parses only a few frames of a connection, and a connection that sends
too many control frames or empty frames is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from tests.unit.http.http_harness import HttpHarness, settled
from tests.unit.http.test_websocket import KEY, UPGRADE, VERSION, Caller, call
from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, Event, Ping, Pong, TextMessage

from headrace.http import websocket
from headrace.http.message import WebSocket

FRAMES_PER_TURN_MAX = 100
IDLE_FRAMES_PER_SECOND_MAX = 300
MASK = b"\0\0\0\0"
PING, PONG, EMPTY_MESSAGE = b"\x89\x80" + MASK, b"\x8a\x80" + MASK, b"\x81\x80" + MASK
FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT = (start + MASK + b"x" for start in (b"\x01\x81", b"\x00\x81", b"\x80\x81"))
EMPTY_FRAGMENT = b"\x00\x80" + MASK


class CountedFrames(Connection):
    """The server's parser; `parsed` counts the frames of all connections, `fed_bytes` their input."""

    parsed = 0
    fed_bytes = 0

    def receive_data(self, data: bytes | None) -> None:
        CountedFrames.fed_bytes += len(data or b"")
        super().receive_data(data)

    def events(self) -> Any:
        for event in super().events():
            CountedFrames.parsed += 1
            yield event


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    CountedFrames.parsed = CountedFrames.fed_bytes = 0
    monkeypatch.setattr(websocket, "Connection", CountedFrames)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


async def parsed_per_turn(caller: Caller, data: bytes) -> list[int]:
    """Return the numbers of frames parsed between two turns of another task, until the parser has caught up."""
    totals = [CountedFrames.parsed]
    caller.sends(data)
    totals.append(CountedFrames.parsed)
    while not caller.line.reads:
        await asyncio.sleep(0)
        totals.append(CountedFrames.parsed)
    return [after - before for before, after in pairwise(totals)]


def closes(events: list[Event]) -> list[int]:
    return [event.code for event in events if isinstance(event, CloseConnection)]


async def test_parsing_many_frames_yields_to_other_tasks() -> None:
    caller = await call(HttpHarness())
    data = FIRST_FRAGMENT + FRAGMENT * 2998 + LAST_FRAGMENT
    turns = await parsed_per_turn(caller, data)
    assert sum(turns) == 3000
    assert max(turns) <= FRAMES_PER_TURN_MAX
    await settled()
    (echo,) = caller.heard()
    assert isinstance(echo, TextMessage)
    assert echo.data == f"got {'x' * 3000!r}"


async def test_reading_is_paused_until_the_parser_has_caught_up() -> None:
    caller = await call(HttpHarness())
    caller.sends(FIRST_FRAGMENT + FRAGMENT * 299)
    assert not caller.line.reads
    await until(lambda: caller.line.reads)
    assert CountedFrames.parsed == 300


async def test_data_received_while_paused_is_parsed_later() -> None:
    caller = await call(HttpHarness())
    caller.sends(FIRST_FRAGMENT + FRAGMENT * 299)
    caller.exchange.data_received(FRAGMENT * 299 + LAST_FRAGMENT)
    assert CountedFrames.parsed == FRAMES_PER_TURN_MAX
    await until(lambda: caller.line.reads)
    await settled()
    assert [type(event) for event in caller.heard()] == [TextMessage]
    assert CountedFrames.parsed == 600


async def test_only_the_latest_ping_of_a_turn_gets_a_pong() -> None:
    caller = await call(HttpHarness())
    client, pings = Connection(ConnectionType.CLIENT), 250
    written = len(caller.line.written)
    caller.sends(b"".join(client.send(Ping(payload=b"%d" % number)) for number in range(pings)))
    assert len(caller.line.written) - written <= 2 + len(b"99")
    await until(lambda: caller.line.reads)
    assert caller.heard() == [Pong(payload=b"99"), Pong(payload=b"199"), Pong(payload=b"249")]


@pytest.mark.parametrize(
    "flood",
    [PING, PONG, EMPTY_MESSAGE, PING + FIRST_FRAGMENT + LAST_FRAGMENT, FIRST_FRAGMENT + EMPTY_FRAGMENT + LAST_FRAGMENT],
    ids=["pings", "pongs", "empty messages", "pings between messages", "empty fragments between data"],
)
async def test_a_flood_of_control_frames_closes_the_connection_unparsed(flood: bytes) -> None:
    harness = HttpHarness()
    caller = await call(harness)
    turns = await parsed_per_turn(caller, flood * 10_000)
    assert max(turns) <= FRAMES_PER_TURN_MAX
    assert closes(caller.heard()) == [1008]
    parsed, fed_bytes = CountedFrames.parsed, CountedFrames.fed_bytes
    assert parsed <= (IDLE_FRAMES_PER_SECOND_MAX + 1) * 3  # one frame out of three is idle, or each
    caller.sends(flood * 10_000)
    await settled()
    assert (CountedFrames.parsed, CountedFrames.fed_bytes) == (parsed, fed_bytes)
    harness.wait(3)
    await settled()
    assert caller.line.aborted
    assert not harness.listener.connections


async def test_a_flood_of_empty_fragments_ends_at_the_limit() -> None:
    caller = await call(HttpHarness())
    turns = await parsed_per_turn(caller, FIRST_FRAGMENT + EMPTY_FRAGMENT * 40_000)
    assert sum(turns) == 102
    assert closes(caller.heard()) == [1008]


async def test_a_flood_after_a_close_is_not_parsed() -> None:
    harness = HttpHarness()

    async def websocket_handler(socket: WebSocket) -> None:
        await socket.close()

    harness.script.websocket_handler = websocket_handler
    caller = await call(harness)
    turns = await parsed_per_turn(caller, PING * 40_000)
    assert sum(turns) == IDLE_FRAMES_PER_SECOND_MAX + 1
    assert closes(caller.heard()) == [1000]


async def test_control_frames_below_the_rate_are_always_accepted() -> None:
    harness = HttpHarness()
    caller = await call(harness)
    for _ in range(10):
        caller.sends(PING * IDLE_FRAMES_PER_SECOND_MAX)
        await until(lambda: caller.line.reads)
        harness.wait(1)
    assert closes(caller.heard()) == []
    caller.says(TextMessage(data="still here"))
    await settled()
    assert [event.data for event in caller.heard() if isinstance(event, TextMessage)] == ["got 'still here'"]


async def test_unreceived_frames_are_not_parsed_and_keep_their_order() -> None:
    harness = HttpHarness()
    fetch = asyncio.Event()
    fetched: list[Any] = []

    async def websocket_handler(socket: WebSocket) -> None:
        await fetch.wait()
        while (message := await socket.receive()) is not None:
            fetched.append(message)

    harness.script.websocket_handler = websocket_handler
    caller = await call(harness)
    client = Connection(ConnectionType.CLIENT)
    messages = [str(number) for number in range(1000)]
    data = b"".join(client.send(TextMessage(data=message)) for message in messages)
    caller.sends(data + client.send(CloseConnection(code=1000)))
    await settled()
    assert CountedFrames.parsed == websocket._UNREAD_MESSAGES_MAX
    assert not caller.line.reads
    fetch.set()
    await until(lambda: caller.line.closed)
    assert fetched == messages
    assert closes(caller.heard()) == [1000]


async def test_frames_are_not_parsed_while_the_client_does_not_read() -> None:
    caller = await call(HttpHarness())
    caller.exchange.pause_writing()
    caller.exchange.data_received(PING * 10)
    assert CountedFrames.parsed == 0
    caller.exchange.resume_writing()
    await until(lambda: caller.line.reads)
    assert caller.heard() == [Pong(payload=b"")]


async def test_nothing_is_parsed_after_a_disconnect() -> None:
    harness = HttpHarness()
    caller = await call(harness)
    caller.sends(FIRST_FRAGMENT + FRAGMENT * 299)
    caller.line.lose()
    await settled()
    assert CountedFrames.parsed == FRAMES_PER_TURN_MAX
    assert not harness.listener.connections


async def test_input_after_an_invalid_frame_is_discarded() -> None:
    caller = await call(HttpHarness())
    caller.sends(b"\xff" * 100)
    fed_bytes = CountedFrames.fed_bytes
    caller.sends(b"\xff" * 100_000)
    assert CountedFrames.fed_bytes == fed_bytes


@pytest.mark.parametrize("path", ["/socket", "/wait/socket"])
async def test_frames_right_after_the_request_are_parsed_in_turns(path: str) -> None:
    harness = HttpHarness()
    http_client = harness.http_client()
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\n{UPGRADE}{KEY}{VERSION}\r\n".encode()
    http_client.sends(head + FIRST_FRAGMENT + FRAGMENT * 2998 + LAST_FRAGMENT)
    harness.script.open("socket")
    totals = [CountedFrames.parsed]

    def is_parsed() -> bool:
        totals.append(CountedFrames.parsed)
        return totals[-1] == 3000

    await until(is_parsed)
    # Twice in the turn that begins the conversation: what was read with the request, and the rest of the data.
    assert max(after - before for before, after in pairwise(totals)) <= 2 * FRAMES_PER_TURN_MAX
    await settled()
    assert http_client.line.written.endswith(f"got {'x' * 3000!r}".encode())
