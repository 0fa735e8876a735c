"""Streamed responses: sent chunk by chunk with back-pressure, and closed when the client disconnects."""

from __future__ import annotations

import pytest
from tests.unit.http.http_harness import HttpHarness, settled


async def test_a_stream_is_sent_in_chunks_and_the_connection_continues() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/stream").asks("/b")
    for chunk in (b"one", b"", b"x" * 300, None):
        harness.script.chunks.put_nowait(chunk)
        await settled()
    first, second = http_client.answers()
    assert first.body == b"one" + b"x" * 300
    assert (first.headers["content-type"], first.headers["cache-control"]) == ("text/event-stream", "no-store")
    assert second.path == "/b"
    assert harness.script.closed_streams == 1


async def test_each_chunk_is_sent_at_once() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/stream")
    harness.script.chunks.put_nowait(b"one")
    await settled()
    assert http_client.line.written.endswith(b"3\r\none\r\n")


async def test_an_http_1_0_stream_ends_with_the_connection() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().sends("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    for chunk in (b"one", b"two", None):
        harness.script.chunks.put_nowait(chunk)
    await settled()
    assert http_client.line.written.endswith(b"\r\n\r\nonetwo")
    assert b"transfer-encoding" not in http_client.line.written
    assert http_client.line.closed


async def test_a_response_to_head_of_a_stream_has_no_body() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/stream", "HEAD").asks("/b")
    await settled()
    first, second = http_client.answers("HEAD", "GET")
    assert (first.status, first.body, second.path) == (200, b"", "/b")


async def test_no_chunk_is_requested_while_the_client_does_not_read() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/stream")
    await settled()
    http_client.line.is_taken = False
    for _ in range(10):
        harness.script.chunks.put_nowait(b"x" * 50_000)
    await settled()
    assert harness.script.chunks.qsize() == 8
    http_client.line.is_taken = True
    http_client.line.take()
    await settled()
    assert harness.script.chunks.qsize() == 0


@pytest.mark.parametrize("leave", ["lose", "abort"])
async def test_a_stream_is_closed_when_the_client_disconnects(leave: str) -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/stream")
    await settled()
    getattr(http_client.line, leave)()
    await settled()
    assert harness.script.closed_streams == 1


async def test_a_stream_to_a_half_closed_client_is_aborted() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/stream").asks("/b")
    harness.script.chunks.put_nowait(b"one")
    await settled()
    http_client.sends_eof()
    await settled()
    assert http_client.line.closed
    assert harness.script.closed_streams == 1
    assert http_client.line.written.endswith(b"3\r\none\r\n"), "the end marker must be missing"


async def test_a_failed_stream_is_aborted_without_an_end_marker(caplog: pytest.LogCaptureFixture) -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/stream")
    harness.script.chunks.put_nowait("no bytes")  # type: ignore[arg-type]
    await settled()
    assert http_client.line.aborted
    assert "stream failed peer=127.0.0.1" in caplog.text


async def test_draining_ends_streams_at_once() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/stream")
    await settled()
    await harness.listener.drain(30)
    assert http_client.line.closed
    assert harness.script.closed_streams == 1


async def test_a_stream_that_was_never_sent_is_closed() -> None:
    harness = HttpHarness()
    closed: list[str] = []

    class Chunks:
        def __aiter__(self) -> Chunks:
            return self

        async def __anext__(self) -> bytes:
            raise StopAsyncIteration

        async def aclose(self) -> None:
            closed.append("it")

    harness.script._stream = Chunks  # type: ignore[method-assign]
    http_client = harness.http_client().asks("/wait/a").asks("/stream")
    await settled()
    http_client.line.lose()
    await settled()
    assert closed == ["it"]
