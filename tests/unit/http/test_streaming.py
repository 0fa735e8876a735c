"""Streams: chunk by chunk, no faster than the client takes them, and closed when it is gone."""

from __future__ import annotations

import pytest
from tests.unit.http.visitors import House, settled


async def test_a_stream_is_sent_in_chunks_and_the_connection_lives_on() -> None:
    house = House()
    visitor = house.visitor().asks("/stream").asks("/b")
    for chunk in (b"one", b"", b"x" * 300, None):
        house.script.chunks.put_nowait(chunk)
        await settled()
    first, second = visitor.answers()
    assert first.body == b"one" + b"x" * 300
    assert (first.headers["content-type"], first.headers["cache-control"]) == ("text/event-stream", "no-store")
    assert second.path == "/b"
    assert house.script.closed_streams == 1


async def test_each_chunk_leaves_at_once() -> None:
    house = House()
    visitor = house.visitor().asks("/stream")
    house.script.chunks.put_nowait(b"one")
    await settled()
    assert visitor.line.written.endswith(b"3\r\none\r\n")


async def test_for_http_1_0_the_end_of_the_connection_is_the_end() -> None:
    house = House()
    visitor = house.visitor().sends("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    for chunk in (b"one", b"two", None):
        house.script.chunks.put_nowait(chunk)
    await settled()
    assert visitor.line.written.endswith(b"\r\n\r\nonetwo")
    assert b"transfer-encoding" not in visitor.line.written
    assert visitor.line.closed


async def test_head_of_a_stream_is_only_its_head() -> None:
    house = House()
    visitor = house.visitor().asks("/stream", "HEAD").asks("/b")
    await settled()
    first, second = visitor.answers("HEAD", "GET")
    assert (first.status, first.body, second.path) == (200, b"", "/b")


async def test_no_chunk_is_asked_for_while_the_client_takes_none() -> None:
    house = House()
    visitor = house.visitor().asks("/stream")
    await settled()
    visitor.line.is_taken = False
    for _ in range(10):
        house.script.chunks.put_nowait(b"x" * 50_000)
    await settled()
    assert house.script.chunks.qsize() == 8
    visitor.line.is_taken = True
    visitor.line.take()
    await settled()
    assert house.script.chunks.qsize() == 0


@pytest.mark.parametrize("leave", ["lose", "abort"])
async def test_a_stream_is_closed_when_the_client_is_gone(leave: str) -> None:
    house = House()
    visitor = house.visitor().asks("/stream")
    await settled()
    getattr(visitor.line, leave)()
    await settled()
    assert house.script.closed_streams == 1


async def test_a_stream_to_half_a_connection_is_cut_and_nothing_follows_it() -> None:
    house = House()
    visitor = house.visitor().asks("/stream").asks("/b")
    house.script.chunks.put_nowait(b"one")
    await settled()
    visitor.sends_eof()
    await settled()
    assert visitor.line.closed
    assert house.script.closed_streams == 1
    assert visitor.line.written.endswith(b"3\r\none\r\n"), "nobody must take it for the whole"


async def test_a_stream_that_fails_is_cut_off_and_not_ended(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    visitor = house.visitor().asks("/stream")
    house.script.chunks.put_nowait("no bytes")  # type: ignore[arg-type]
    await settled()
    assert visitor.line.aborted
    assert "stream failed peer=127.0.0.1" in caplog.text


async def test_draining_ends_streams_at_once() -> None:
    house = House()
    visitor = house.visitor().asks("/stream")
    await settled()
    await house.listener.drain(30)
    assert visitor.line.closed
    assert house.script.closed_streams == 1


async def test_a_stream_that_is_not_sent_any_more_is_closed() -> None:
    house = House()
    closed: list[str] = []

    class Chunks:
        def __aiter__(self) -> Chunks:
            return self

        async def __anext__(self) -> bytes:
            raise StopAsyncIteration

        async def aclose(self) -> None:
            closed.append("it")

    house.script._stream = Chunks  # type: ignore[method-assign]
    visitor = house.visitor().asks("/wait/a").asks("/stream")
    await settled()
    visitor.line.lose()
    await settled()
    assert closed == ["it"]
