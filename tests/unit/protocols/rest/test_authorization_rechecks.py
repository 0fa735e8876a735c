"""Streams, WebSockets and waiting requests end when their token becomes invalid, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tests.unit.client.scripted_cluster import in_world
from tests.unit.http.http_harness import HttpHarness
from tests.unit.protocols.rest.rest_harness import RestHarness, with_rest_harness
from tests.unit.protocols.rest.test_authorization import TokenServer, request, with_token_server

from headrace.client.admin.tokens import TokenAdmin
from headrace.client.fetch.consumer import Consumer
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.metadata import TopicPartition
from headrace.client.queues.requests import Responder
from headrace.http.limits import HttpLimits
from headrace.http.listener import HttpListener
from headrace.http.message import Response, StreamedResponse, WebSocket, WebSocketResponse
from headrace.protocols.health.pages import HealthPages
from headrace.protocols.rest.authorization import AllowAllAuthorizer, TokenAuthorizer
from headrace.protocols.rest.authorization_rechecks import with_authorization_rechecks
from headrace.server.broker_health import BrokerHealth
from headrace.server.gateway_application import GatewayApplication
from headrace.server.http_server import ClosableApplication, LazyApplication
from headrace.testkit.world import World


class Source:
    """An endless stream with one chunk per second."""

    def __init__(self) -> None:
        self.is_closed = False

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            while True:
                await asyncio.sleep(1.0)
                yield b"tick"
        finally:
            self.is_closed = True


class NoChecks:
    """A health source without metrics and checks."""

    async def page(self) -> bytes:
        return b""

    def checks(self) -> dict[str, str | None]:
        return {}


class Socket:
    """Receives one frame per second while it is open, if it is `talkative`; otherwise nothing."""

    def __init__(self, *, talkative: bool = False) -> None:
        self.sent = 0
        self.closed_with: int | None = None
        self._talkative = talkative
        self._closed = asyncio.Event()

    async def receive(self) -> str | bytes | None:
        while self._talkative:
            await asyncio.sleep(1.0)
            return "settle"
        await self._closed.wait()
        return None

    async def send(self, _text: str) -> None:
        self.sent += 1

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.closed_with = code
        self._closed.set()


def test_a_complete_response_is_unchanged() -> None:
    async def scenario(world: World) -> None:
        response = Response()
        welcome = AllowAllAuthorizer()
        assert with_authorization_rechecks(response, lambda: welcome.is_still_authorized(request())) is response

    in_world(scenario)


def test_a_stream_ends_soon_after_its_token_was_revoked() -> None:
    async def scenario(world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        source = Source()
        streamed = StreamedResponse(source.chunks(), "text/event-stream", 200, [("x-a", "b")])
        response = with_authorization_rechecks(streamed, lambda: authorizer.is_still_authorized(request()))
        assert isinstance(response, StreamedResponse)
        assert (response.content_type, response.headers) == ("text/event-stream", [("x-a", "b")])
        count = 0
        async for _ in response.chunks:
            count += 1
            if count == 60:
                token_server.tokens.clear()
        assert 60 <= count <= 60 + 5
        assert source.is_closed

    with_token_server(scenario)


def test_closing_a_stream_closes_its_source() -> None:
    async def scenario(world: World) -> None:
        source = Source()
        response = with_authorization_rechecks(StreamedResponse(source.chunks(), "text/plain"), _yes)
        assert isinstance(response, StreamedResponse)
        assert await anext(response.chunks) == b"tick"
        await response.chunks.aclose()  # type: ignore[attr-defined]
        assert source.is_closed

    in_world(scenario)


def test_a_stream_continues_while_no_broker_can_verify_the_token() -> None:
    async def scenario(_: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        assert await authorizer.is_still_authorized(request())
        token_server.is_silent = True
        await asyncio.sleep(5.0)
        assert await authorizer.is_still_authorized(request())

    with_token_server(scenario)


def test_a_websocket_is_closed_when_its_token_becomes_invalid() -> None:
    async def scenario(world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        socket = Socket()

        async def websocket_handler(checked: object) -> None:
            for count in range(10):
                await asyncio.sleep(1.0)
                if count == 1:
                    token_server.tokens.clear()
                await checked.send("x")  # type: ignore[attr-defined]
            assert await checked.receive() is None  # type: ignore[attr-defined]

        await authorizer.is_still_authorized(request())
        response = with_authorization_rechecks(
            WebSocketResponse(websocket_handler), lambda: authorizer.is_still_authorized(request())
        )
        assert isinstance(response, WebSocketResponse)
        await response.websocket_handler(socket)
        assert socket.closed_with == 1008
        assert socket.sent == 3

    with_token_server(scenario)


def test_frames_received_after_the_token_was_revoked_are_not_processed() -> None:
    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        received = 0

        async def websocket_handler(checked: WebSocket) -> None:
            nonlocal received
            while await checked.receive() is not None:
                received += 1
                if received == 10:
                    token_server.tokens.clear()

        socket = Socket(talkative=True)
        response = with_authorization_rechecks(
            WebSocketResponse(websocket_handler), lambda: authorizer.is_still_authorized(request())
        )
        assert isinstance(response, WebSocketResponse)
        async with asyncio.timeout(60.0):
            await response.websocket_handler(socket)
        assert 10 <= received <= 15
        assert socket.closed_with == 1008

    with_token_server(scenario)


def test_an_idle_websocket_ends_with_its_token() -> None:
    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        async def websocket_handler(checked: WebSocket) -> None:
            assert await checked.receive() is None

        socket = Socket()
        response = with_authorization_rechecks(
            WebSocketResponse(websocket_handler), lambda: authorizer.is_still_authorized(request())
        )
        assert isinstance(response, WebSocketResponse)
        token_server.tokens.clear()
        async with asyncio.timeout(5.5):
            await response.websocket_handler(socket)
        assert socket.closed_with == 1008

    with_token_server(scenario)


def test_an_idle_stream_ends_with_its_token() -> None:
    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        async def silent() -> AsyncIterator[bytes]:
            await asyncio.sleep(3600.0)
            yield b""

        response = with_authorization_rechecks(
            StreamedResponse(silent(), "text/event-stream"), lambda: authorizer.is_still_authorized(request())
        )
        assert isinstance(response, StreamedResponse)
        token_server.tokens.clear()
        async with asyncio.timeout(5.5):
            assert [chunk async for chunk in response.chunks] == []

    with_token_server(scenario)


def test_a_long_poll_returns_no_messages_after_its_token_was_revoked() -> None:
    async def scenario(harness: RestHarness) -> None:
        mine, operator = await harness.token("consume:jobs", name="revoked"), await harness.token("manage:*")
        await harness.ask("POST", "/topics", {"name": "jobs"}, authorization=operator)
        await harness.ask("POST", "/topics/jobs/subscriptions", {"name": "w"}, authorization=operator)
        pulling = asyncio.create_task(harness.ask("GET", "/subscriptions/w/messages?wait=60s", authorization=mine))
        await asyncio.sleep(1.0)
        await _revoke(harness, "revoked")
        await asyncio.sleep(10.0)
        await harness.publish("jobs", {"n": 1}, authorization=operator)
        response = await pulling
        assert (response.status, response.code) == (401, "token_unknown")
        other = await harness.ask("GET", "/subscriptions/w/messages?wait=5s", authorization=operator)
        assert [(one["value"], one["attempt"]) for one in other.json["messages"]] == [({"n": 1}, 1)]

    with_rest_harness(scenario, with_auth=True)


def test_a_body_completed_after_the_token_was_revoked_stores_nothing() -> None:
    async def scenario(harness: RestHarness) -> None:
        reach = BrokerHealth(harness.cluster)
        await reach.look()
        gateway = GatewayApplication(harness.application, reach)
        applications: tuple[ClosableApplication, ...] = (harness.application, gateway)
        operator = await harness.token("manage:*")
        for application in applications:
            simulated_broker = HttpHarness()
            simulated_broker.listener = HttpListener(
                _front(application), HttpLimits(), harness.host.clock, harness.host.entropy
            )
            mine = await harness.token("publish:slow", name="revoked")
            head = f"POST /topics/slow/messages HTTP/1.1\r\nHost: x\r\nAuthorization: {mine}\r\n"
            http_client = simulated_broker.http_client().sends(f"{head}Content-Length: 30000\r\n\r\n{'x' * 10_000}")
            await asyncio.sleep(1.0)
            assert http_client.exchange.reader.body_bytes == 10_000
            await _revoke(harness, "revoked")
            await asyncio.sleep(5.0)
            http_client.sends(b"x" * 20_000)
            async with asyncio.timeout(10.0):
                while not http_client.line.written:
                    await asyncio.sleep(0.1)
            assert (http_client.answer().status, http_client.answer().code) == (401, "token_unknown")
            response = await harness.ask("GET", "/topics/slow", authorization=operator)
            assert response.status == 404  # the first message would have created the topic

    with_rest_harness(scenario, with_auth=True)


def test_a_reply_received_after_the_token_was_revoked_is_not_returned() -> None:
    async def scenario(harness: RestHarness) -> None:
        mine, operator = await harness.token("publish:sums", name="revoked"), await harness.token("manage:*")
        await harness.ask("POST", "/topics", {"name": "sums"}, authorization=operator)
        is_revoked = asyncio.Event()
        replied = asyncio.Event()

        async def reply_late(_request: ConsumedRecord) -> bytes:
            await is_revoked.wait()
            replied.set()
            return b"too late"

        async def work() -> None:
            async with (
                Responder(harness.cluster) as responder,
                Consumer(harness.cluster, partitions={TopicPartition("sums", 0): 0}) as consumer,
            ):
                await responder.answer(consumer, reply_late)

        worker = harness.supervisor.spawn(work(), "worker")
        target = "/topics/sums/messages?wait_for=reply&timeout=50s"
        asking = asyncio.create_task(harness.ask("POST", target, {"n": 1}, authorization=mine))
        await asyncio.sleep(1.0)
        await _revoke(harness, "revoked")
        await asyncio.sleep(10.0)
        is_revoked.set()
        response = await asking
        assert replied.is_set()
        assert (response.status, response.code) == (401, "token_unknown")
        worker.cancel()
        await asyncio.wait([worker])

    with_rest_harness(scenario, with_auth=True)


def _front(application: ClosableApplication) -> LazyApplication:
    health = HealthPages(NoChecks())
    health.is_ready = True
    return LazyApplication(health, lambda: application)


async def _revoke(harness: RestHarness, name: str) -> None:
    ids = [one.id for one in await TokenAdmin(harness.cluster).list() if one.name == name]
    assert len(ids) == 1
    await TokenAdmin(harness.cluster).revoke(ids)


async def _yes() -> bool:
    return True
