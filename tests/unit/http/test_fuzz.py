"""No input, however it is split, raises from a connection or leaks memory. Requests that h11 parses are parsed
alike."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from itertools import pairwise
from typing import Any

import h11
from hypothesis import example, given
from hypothesis import strategies as st
from tests.fuzz.steps import StepLimit
from tests.unit.http.http_harness import HttpHarness, HttpTestClient, settled

METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "PRI", "get", "M-SEARCH"]
TARGETS = [
    "/",
    "/a",
    "/wait/a",
    "/stream",
    "/socket",
    "/bug",
    "/large",
    "/splitting",
    "*",
    "http://x/y",
    "/a?b=%zz",
    "\xff",
]
VERSIONS = ["1.1", "1.1", "1.1", "1.0", "2.0"]
HEADERS = [
    "Host: x",
    "Content-Length: 3",
    "Content-Length: 5000",
    "Content-Length: x",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip",
    "Connection: close",
    "Connection: Upgrade",
    "Connection: keep-alive",
    "Upgrade: websocket",
    "Upgrade: h2c",
    "Sec-WebSocket-Key: eA==",
    "Sec-WebSocket-Version: 13",
    "Expect: 100-continue",
    "Expect: x",
    "X-Request-Id: \x7f",
    "X" * 3000 + ": y",
    " folded",
]
BODIES = [
    "",
    "abc",
    "3\r\nabc\r\n0\r\n\r\n",
    "3;x\r\nabc\r\n",
    "zz\r\n",
    "x" * 4000,
    "\x81\x82\0\0\0\0hi",
    "\x88\x80\0\0\0\0",
]


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    method, target, version = (draw(st.sampled_from(choice)) for choice in (METHODS, TARGETS, VERSIONS))
    line = f"{method} {target} HTTP/{version}"
    headers = draw(st.lists(st.sampled_from(HEADERS), max_size=6))
    text = "\r\n".join([line, *headers, "", draw(st.sampled_from(BODIES))])
    return text.encode("latin-1")


repeated = st.builds(lambda request, times: request * times, requests(), st.integers(2, 60))
streams = st.lists(st.one_of(requests(), requests(), repeated, st.binary(max_size=60)), max_size=5).map(b"".join)
cuts = st.lists(st.integers(0, 6000), max_size=8)


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run on a loop whose exception handler fails the test."""
    complaints: list[dict[str, Any]] = []
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, context: complaints.append(context))
        runner.run(story)
    assert complaints == []


def pieces_of(data: bytes, places: Sequence[int]) -> list[bytes]:
    bounds = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


async def send(http_client: HttpTestClient, data: bytes, places: Sequence[int]) -> None:
    """Send like a transport: only while the connection reads, and nothing after its end."""
    for piece in pieces_of(data, places):
        for _ in range(20):
            if http_client.line.reads or http_client.line.closed:
                break
            await settled()
        if http_client.line.closed or not http_client.line.reads:
            return
        http_client.exchange.data_received(piece)


@given(streams, cuts)
@example(b"CONNECT http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", [])
@example(b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 9\r\n\r\nabc", [])
def test_the_reader_terminates_on_every_input(data: bytes, places: list[int]) -> None:
    """The number of steps is limited, so that a loop without progress fails at once."""

    async def story() -> None:
        harness = HttpHarness()
        http_client = harness.http_client()
        for piece in pieces_of(data, places):
            if http_client.line.closed or not http_client.line.reads:
                break
            with StepLimit(2000 + 100 * len(piece)):
                http_client.exchange.data_received(piece)
        http_client.line.lose()
        harness.script.open("a")
        harness.script.chunks.put_nowait(None)
        await settled()

    run(story())


@given(streams, cuts, st.booleans(), st.booleans())
@example(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\nGET /socket HTTP/1.1\r\nHost: x\r\n\r\n", [30], True, True)
def test_no_input_raises_or_leaks(data: bytes, places: list[int], is_taken: bool, ends: bool) -> None:
    async def story() -> None:
        harness = HttpHarness(message_bytes_max=100, pending_responses_max=2)
        http_client = harness.http_client()
        http_client.line.is_taken = is_taken
        await send(http_client, data, places)
        harness.wait(5)
        await settled()
        if ends and not http_client.line.closed:
            http_client.sends_eof()
        harness.wait(100)
        harness.wait(100)
        await settled()
        http_client.line.lose()
        harness.script.open("a")
        harness.script.chunks.put_nowait(None)
        await settled()
        assert harness.listener.budget.taken == 0
        assert not harness.listener.connections

    run(story())


FRAMES = [
    "\x81\x82\0\0\0\0hi",
    "\x01\x81\0\0\0\0h",
    "\x80\x81\0\0\0\0i",
    "\x89\x80\0\0\0\0",
    "\x88\x82\0\0\0\0\x03\xe8",
]
frames = st.lists(st.one_of(st.sampled_from(FRAMES).map(lambda text: text.encode("latin-1")), st.binary(max_size=40)))
GRANTED = b"GET /socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
GRANTED += b"Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n"


@given(frames.map(b"".join), cuts, st.booleans())
def test_no_websocket_frames_raise_or_leak(data: bytes, places: list[int], ends: bool) -> None:
    async def story() -> None:
        harness = HttpHarness(message_bytes_max=100)
        http_client = harness.http_client()
        await send(http_client, GRANTED + data, [*places, len(GRANTED)])
        await settled()
        if ends and not http_client.line.closed:
            http_client.sends_eof()
        harness.wait(21)
        harness.wait(21)
        await settled()
        http_client.line.lose()
        await settled()
        assert not harness.listener.connections

    run(story())


@given(
    st.lists(st.tuples(st.sampled_from(["GET", "POST", "PUT"]), st.binary(max_size=900), st.booleans()), max_size=6),
    cuts,
)
def test_requests_written_by_h11_are_parsed_correctly(meant: list[tuple[str, bytes, bool]], places: list[int]) -> None:
    async def story() -> None:
        client = h11.Connection(h11.CLIENT)
        harness = HttpHarness()
        http_client = harness.http_client()
        seen = 0
        for number, (method, body, chunked) in enumerate(meant):
            how = ("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(body)))
            head = h11.Request(method=method, target=f"/{number}", headers=[("Host", "x"), how])
            data = (client.send(head) or b"") + (client.send(h11.Data(data=body)) or b"")
            data += client.send(h11.EndOfMessage()) or b""
            await send(http_client, data, places)
            await settled()
            client.receive_data(http_client.line.written[seen:])
            seen = len(http_client.line.written)
            response = client.next_event()
            assert isinstance(response, h11.Response)
            assert response.status_code == 200
            while not isinstance(client.next_event(), h11.EndOfMessage):
                pass
            client.start_next_cycle()
        assert [(one.method, one.body) for one in harness.script.requests] == [one[:2] for one in meant]

    run(story())


@given(streams, cuts)
def test_the_result_does_not_depend_on_how_bytes_are_split(data: bytes, places: list[int]) -> None:
    async def read(cut: Sequence[int]) -> list[tuple[str, str, bytes]]:
        harness = HttpHarness(pending_responses_max=1000)
        http_client = harness.http_client()
        await send(http_client, data, cut)
        await settled()
        http_client.line.lose()
        harness.script.open("a")  # a write continues without its client
        await settled()
        return [(one.method, one.path, one.body) for one in harness.script.requests]

    async def story() -> None:
        assert await read([]) == await read(places)

    run(story())
