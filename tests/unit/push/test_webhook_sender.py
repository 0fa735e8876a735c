"""Real HTTP requests to a local receiver that misbehaves in every way."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from tests.unit.push.push_support import push_of
from tests.unit.push.test_webhook import message

from headrace.push.webhook import AcknowledgeType, DeliveryOutcome
from headrace.push.webhook_sender import WebhookSender, open_sender
from headrace.runtime.clock import SystemClock

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def receiver(handler: Handler) -> AsyncIterator[str]:
    """The URL of a receiver that sends these responses."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def opened(*, allows_private: bool = True) -> AsyncIterator[WebhookSender]:
    sender = await open_sender(SystemClock(), allows_private=allows_private)
    try:
        yield sender
    finally:
        await sender.close()


async def outcome(handler: Handler, *, timeout_ms: int = 10_000) -> DeliveryOutcome:
    async with receiver(handler) as url, opened() as sender:
        return await sender.send(push_of(url=url, timeout_ms=timeout_ms), message())


async def test_a_message_arrives_with_its_headers() -> None:
    requests: list[tuple[web.Request, bytes]] = []

    async def handler(request: web.Request) -> web.Response:
        requests.append((request, await request.read()))
        return web.Response(status=204)

    assert (await outcome(handler)).verdict is AcknowledgeType.ACK
    ((request, body),) = requests
    assert (request.method, request.path, body) == ("POST", "/hook", b"{}")
    assert request.headers["Headrace-Message-Id"] == "orders:2:17"
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["User-Agent"].startswith("Headrace/")
    assert request.headers["Headrace-Signature"].startswith("t=")


async def test_redirects_are_not_followed_and_cookies_are_not_kept() -> None:
    seen: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.path + request.headers.get("Cookie", ""))
        return web.Response(status=307, headers={"Location": "/elsewhere", "Set-Cookie": "a=b"})

    async with receiver(handler) as url, opened() as sender:
        for _ in range(2):
            result = await sender.send(push_of(url=url.replace("127.0.0.1", "localhost")), message())
            assert (result.verdict, result.is_healthy) == (AcknowledgeType.NACK, False)
    assert seen == ["/hook", "/hook"]


async def test_a_hanging_receiver_times_out() -> None:
    async def handler(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    result = await outcome(handler, timeout_ms=100)
    assert (result.verdict, result.is_healthy, result.error) == (AcknowledgeType.NACK, False, "no answer within 100 ms")


async def test_an_endless_response_is_cut_off() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 10_000)

    assert (await outcome(handler)).verdict is AcknowledgeType.ACK


async def test_a_connection_that_breaks_may_have_delivered_the_message() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    result = await outcome(handler)
    assert (result.verdict, result.is_healthy) == (AcknowledgeType.NACK, False)


async def test_a_refused_connection_counts_as_undelivered() -> None:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response()

    async with receiver(handler) as url:
        pass
    async with opened() as sender:
        result = await sender.send(push_of(url=url), message())
    assert (result.verdict, result.is_healthy) == (AcknowledgeType.UNDELIVERED, False)
    assert "cannot connect" in result.error


async def test_a_host_name_that_does_not_resolve_counts_as_undelivered() -> None:
    async with opened() as sender:
        result = await sender.send(push_of(url="http://nobody.invalid/hook"), message())
    assert result.verdict is AcknowledgeType.UNDELIVERED


async def test_a_receiver_that_does_not_speak_http_counts_as_unanswered() -> None:
    async def websocket_handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 smtp.example ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(websocket_handler, "127.0.0.1", 0)
    async with server, opened() as sender:
        port = server.sockets[0].getsockname()[1]
        result = await sender.send(push_of(url=f"http://127.0.0.1:{port}/"), message())
    assert (result.verdict, result.is_healthy) == (AcknowledgeType.NACK, False)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1", "2130706433"])
async def test_private_addresses_are_not_connected_to_unless_that_is_allowed(host: str) -> None:
    async def handler(_request: web.Request) -> web.Response:
        raise AssertionError("it was connected to")

    async with receiver(handler) as url, opened(allows_private=False) as sender:
        result = await sender.send(push_of(url=url.replace("127.0.0.1", host)), message())
    assert result.verdict is AcknowledgeType.UNDELIVERED
    assert re.search("not a (public|canonical)", result.error)


async def test_an_error_does_not_reveal_internal_names_or_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolve(_loop: object, host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if host == "absent.internal.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.1.2.3", port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    errors = set()
    async with opened(allows_private=False) as sender:
        for host in ("vault.internal.example", "absent.internal.example"):
            errors.add((await sender.send(push_of(url=f"http://{host}/hook"), message())).error)
    (error,) = errors
    assert "10.1.2.3" not in error
    assert "--push-private" in error


async def test_the_error_of_a_refused_connection_contains_no_address() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://localhost:{free.getsockname()[1]}/hook"
    async with opened() as sender:
        result = await sender.send(push_of(url=url), message())
    assert result.error == "cannot connect: Connection refused"


async def test_an_untrusted_certificate_is_rejected() -> None:
    import ssl

    import trustme

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0, ssl=context)
    async with server, opened() as sender:
        port = server.sockets[0].getsockname()[1]
        result = await sender.send(push_of(url=f"https://localhost:{port}/"), message())
    assert (result.verdict, result.is_healthy) == (AcknowledgeType.UNDELIVERED, False)


@pytest.mark.parametrize(
    "url", ["http://a..b/", "http://a%00b/", f"http://{'a' * 64}/", "http://", "no url", "http://h:99999/"]
)
async def test_an_unusable_url_is_an_outcome_and_not_an_exception(url: str) -> None:
    async with opened() as sender:
        outcome = await sender.send(push_of(url=url), message())
    assert (outcome.verdict, outcome.is_healthy) == (AcknowledgeType.UNDELIVERED, False)
    assert outcome.error
