"""The admin door over real sockets: pages, refusals, and requests that come in odd pieces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace.doors.admin import http as http_module
from headrace.doors.admin.http import AdminDoor

HOST = "127.0.0.1"


class Source:
    def __init__(self) -> None:
        self.wrong: str | None = None

    def render(self) -> str:
        if self.wrong == "bug":
            raise ZeroDivisionError
        return "up 1\n"

    def checks(self) -> dict[str, str | None]:
        return {"disk": self.wrong}


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def get(self, path: str, method: str = "GET", headers: str = "") -> tuple[int, dict[str, str], str]:
        self.writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        return await self.answer(has_body=method != "HEAD")

    async def answer(self, *, has_body: bool = True) -> tuple[int, dict[str, str], str]:
        async with asyncio.timeout(5):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            status, *lines = head.strip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = await self.reader.readexactly(int(headers["content-length"])) if has_body else b""
        return int(status.split()[1]), headers, body.decode()

    async def is_closed(self) -> bool:
        async with asyncio.timeout(5):
            return await self.reader.read() == b""


@asynccontextmanager
async def visiting(source: Source | None = None, *, ready: bool = True) -> AsyncIterator[Client]:
    door = AdminDoor(source or Source())
    door.is_ready = ready
    host, port = await door.listen(HOST, 0)
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        await door.close()


async def test_the_pages() -> None:
    async with visiting() as client:
        assert (await client.get("/livez"))[::2] == (200, "ok\n")
        status, headers, body = await client.get("/metrics")
        assert (status, body) == (200, "up 1\n")
        assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert (await client.get("/readyz?verbose=1"))[::2] == (200, "[+] serving\n[+] disk\n")
        assert (await client.get("/nothing"))[0] == 404


async def test_one_that_is_not_ready_says_why() -> None:
    source = Source()
    async with visiting(source, ready=False) as client:
        status, _, body = await client.get("/readyz")
        assert status == 503
        assert body.startswith("[-] serving: the broker is starting or stopping\n[+] disk")
        assert (await client.get("/livez"))[0] == 200
    source.wrong = "nearly full"
    async with visiting(source) as client:
        assert (await client.get("/healthz"))[::2] == (503, "[+] serving\n[-] disk: nearly full\n")


async def test_head_has_the_length_but_not_the_body() -> None:
    async with visiting() as client:
        status, headers, _ = await client.get("/livez", "HEAD")
        assert (status, headers["content-length"]) == (200, "3")
        assert (await client.get("/livez"))[2] == "ok\n"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_other_methods_are_refused_and_the_connection_lives_on(method: str) -> None:
    async with visiting() as client:
        assert (await client.get("/livez", method))[0] == 405
        assert (await client.get("/livez"))[0] == 200


@pytest.mark.parametrize("garbage", [b"\0\0\0\x20\0\x03\0\x01", b"GET\r\n\r\n", b"NONSENSE / HTTP/1.1\r\n\r\n"])
async def test_what_is_not_http_is_a_bad_request_and_ends_the_connection(garbage: bytes) -> None:
    async with visiting() as client:
        client.writer.write(garbage)
        assert (await client.answer())[0] == 400
        assert await client.is_closed()


async def test_an_upgrade_is_refused() -> None:
    async with visiting() as client:
        status, _, _ = await client.get("/livez", headers="Connection: Upgrade\r\nUpgrade: websocket\r\n")
        assert status in (200, 400)


async def test_a_request_that_is_too_long_is_refused() -> None:
    async with visiting() as client:
        client.writer.write(b"GET /livez HTTP/1.1\r\nX: " + b"x" * 20_000)
        assert (await client.answer())[0] == 400
        assert await client.is_closed()


async def test_many_requests_on_one_connection_are_not_one_long_request() -> None:
    async with visiting() as client:
        for _ in range(5):
            assert (await client.get("/livez", headers=f"X: {'x' * 5000}\r\n"))[0] == 200


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with visiting() as client:
        requests = [f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n" for path in ("/livez", "/metrics", "/no", "/livez")]
        client.writer.write("".join(requests).encode())
        answers = [await client.answer() for _ in requests]
        assert [(status, body[:2]) for status, _, body in answers] == [
            (200, "ok"),
            (200, "up"),
            (404, "th"),
            (200, "ok"),
        ]


async def test_a_request_that_comes_byte_by_byte_is_understood() -> None:
    async with visiting() as client:
        for byte in b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n":
            client.writer.write(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        assert (await client.answer())[::2] == (200, "up 1\n")


async def test_http_1_0_and_connection_close_are_honoured() -> None:
    async with visiting() as client:
        client.writer.write(b"GET /livez HTTP/1.0\r\n\r\n")
        assert (await client.answer())[1]["connection"] == "close"
        assert await client.is_closed()
    async with visiting() as client:
        assert (await client.get("/livez", headers="Connection: close\r\n"))[1]["connection"] == "close"
        assert await client.is_closed()


async def test_a_page_that_fails_is_our_fault_and_not_the_clients(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    source.wrong = "bug"
    async with visiting(source) as client:
        with caplog.at_level(logging.ERROR):
            assert (await client.get("/metrics"))[0] == 500
        assert "ZeroDivisionError" in caplog.text
        assert (await client.get("/livez"))[0] == 200


async def test_a_connection_that_brings_no_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "_IDLE_SECONDS", 0.05)
    async with visiting() as client:
        assert await client.is_closed()


async def test_each_request_gives_the_connection_its_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    call_later = loop.call_later

    def noted(delay: float, *rest: object, **options: object) -> asyncio.TimerHandle:
        if delay == http_module._IDLE_SECONDS:
            timers.append(delay)
        return call_later(delay, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_later", noted)
    async with visiting() as client:
        await client.get("/livez")
        await client.get("/livez")
    assert len(timers) == 3


async def test_only_so_many_connections_are_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "_CONNECTIONS_MAX", 1)
    door = AdminDoor(Source())
    host, port = await door.listen(HOST, 0)
    first = Client(*await asyncio.open_connection(host, port))
    assert (await first.get("/livez"))[0] == 200
    second = Client(*await asyncio.open_connection(host, port))
    async with asyncio.timeout(5):
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await second.get("/livez")
    for client in (first, second):
        client.writer.close()
    await door.close()
