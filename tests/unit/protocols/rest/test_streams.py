"""Streams: messages are sent as they arrive, up to the number that may be in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

import msgspec
import pytest
from tests.unit.push.push_support import leased, put, until, with_queue

from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.client.queues.leased_messages import receipt_from_text
from headrace.client.queues.settling import ACK, settle
from headrace.client.queues.subscription import Subscription
from headrace.http.message import Request, StreamedResponse, WebSocketResponse
from headrace.http.problems import Problem
from headrace.protocols.rest.streams import StreamRoutes
from headrace.push.settlements_elsewhere import FeedRegistry
from headrace.testkit.world import World
from headrace.wire.messages.queues import SettleItem


def get(query: Mapping[str, str] | None = None, method: str = "GET", **headers: str) -> Request:
    params = {"subscription": "workers", "topic": "jobs"}
    return Request(method, "/subscriptions/workers/stream", query or {}, headers, b"", "127.0.0.1", "id", params)


class Events:
    """Parses an event stream like a browser."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self.messages: list[dict[str, Any]] = []
        self.comments = 0
        self.errors: list[dict[str, Any]] = []
        self._chunks = chunks
        self._reading: asyncio.Task[None] | None = None

    async def read(self) -> None:
        async for chunk in self._chunks:
            assert chunk.endswith(b"\n\n")
            for event in chunk.decode().split("\n\n")[:-1]:
                self._take(event)

    def _take(self, event: str) -> None:
        fields: dict[str, list[str]] = {}
        for line in event.split("\n"):
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))
        if "" in fields:
            self.comments += 1
            return
        data = msgspec.json.decode("\n".join(fields["data"]))
        if fields["event"] == ["message"]:
            assert fields["id"] == [data["message_id"]]
            self.messages.append(data)
        else:
            self.errors.append(data)

    def start(self) -> Events:
        self._reading = asyncio.create_task(self.read())
        return self

    async def stop(self) -> None:
        """Disconnect the client."""
        assert self._reading is not None
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await self._chunks.aclose()


class Socket:
    """The server's end of a WebSocket; the test controls the other end."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.closed_with: int | None = None
        self.breaks_after = 1000
        self._said: asyncio.Queue[str | bytes | None] = asyncio.Queue()

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [one for one in self.got if "message_id" in one]

    def say(self, **frame: Any) -> None:
        self._said.put_nowait(msgspec.json.encode(frame).decode())

    def say_raw(self, text: str | bytes | None) -> None:
        self._said.put_nowait(text)

    async def receive(self) -> str | bytes | None:
        return await self._said.get()

    async def send(self, text: str) -> None:
        if self.closed_with is not None or len(self.got) >= self.breaks_after:
            raise ConnectionResetError
        await asyncio.sleep(0)
        self.got.append(msgspec.json.decode(text))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.closed_with = code
        self.say_raw(None)


async def events_of(streams: StreamRoutes, **query: str) -> Events:
    response = await streams.stream(get(query))
    assert isinstance(response, StreamedResponse)
    assert response.content_type == "text/event-stream"
    return Events(cast("AsyncGenerator[bytes, None]", response.chunks)).start()


async def socket_of(streams: StreamRoutes, **query: str) -> tuple[Socket, asyncio.Task[None]]:
    response = await streams.stream(get(query, upgrade="WebSocket"))
    assert isinstance(response, WebSocketResponse)
    socket = Socket()

    async def websocket_handler() -> None:
        await response.websocket_handler(socket)

    return socket, asyncio.create_task(websocket_handler())


async def ack(cluster: Cluster, *messages: dict[str, Any]) -> None:
    receipts = [receipt_from_text(message["receipt"]) for message in messages]
    assert await settle(cluster, "workers", receipts, SettleItem(how=ACK)) == []


# Server-sent events


def test_events_have_the_form_of_pulled_messages_and_stop_at_max_in_flight() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, *(b'{"n":\r\n %d}' % number for number in range(10)))
        events = await events_of(StreamRoutes(cluster, FeedRegistry()), max_in_flight="4", lease="1h")
        await until(lambda: len(events.messages) == 4)
        await asyncio.sleep(60.0)
        assert [one["value"] for one in events.messages] == [{"n": number} for number in range(4)]
        assert await leased(cluster) == 4
        await ack(cluster, *events.messages[:3])
        await until(lambda: len(events.messages) == 7, 2.0)
        await asyncio.sleep(10.0)
        assert len(events.messages) == 7
        await events.stop()

    with_queue(scenario)


def test_an_idle_stream_sends_a_keep_alive_every_fifteen_seconds() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        events = await events_of(StreamRoutes(cluster, FeedRegistry()))
        await asyncio.sleep(61.0)
        assert events.comments == 1 + 4
        await events.stop()

    with_queue(scenario)


def test_a_settlement_in_the_same_process_returns_credit_at_once() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        feeds = FeedRegistry()
        await put(cluster, b"1", b"2")
        events = await events_of(StreamRoutes(cluster, feeds), max_in_flight="1", lease="1h")
        await until(lambda: len(events.messages) == 1)
        await asyncio.sleep(10.0)
        await ack(cluster, events.messages[0])
        feeds.settled([receipt_from_text(events.messages[0]["receipt"])])
        await until(lambda: len(events.messages) == 2, 0.1)
        await events.stop()
        assert len(feeds) == 0

    with_queue(scenario)


def test_sent_events_stay_leased_when_the_client_disconnects() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"1")
        events = await events_of(StreamRoutes(cluster, FeedRegistry()), lease="1h")
        await until(lambda: len(events.messages) == 1)
        await events.stop()
        assert await leased(cluster) == 1
        await ack(cluster, *events.messages)

    with_queue(scenario)


def test_an_unsent_chunk_is_released() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"1", b"2")
        response = await StreamRoutes(cluster, FeedRegistry()).stream(get({"lease": "1h"}))
        assert isinstance(response, StreamedResponse)
        chunks = cast("AsyncGenerator[bytes, None]", response.chunks)
        assert (await anext(chunks)).startswith(b":")
        assert (await anext(chunks)).count(b"event: message") == 2
        await chunks.aclose()
        assert await leased(cluster) == 0

    with_queue(scenario)


def test_a_stream_of_a_deleted_subscription_ends_with_an_error_event() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        events = await events_of(StreamRoutes(cluster, FeedRegistry()))
        await asyncio.sleep(1.0)
        await SubscriptionAdmin(cluster).delete("jobs", "workers")
        await until(lambda: bool(events.errors), 30.0)
        assert events.errors[0]["code"] == "subscription_not_found"
        await events.stop()

    with_queue(scenario)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get({"max_in_flight": "0"}), 422),
        (get({"max_in_flight": "many"}), 422),
        (get({"lease": "1ms"}), 422),
        (get({}, accept="application/json"), 406),
        (get({}, method="HEAD"), 405),
    ],
)
def test_invalid_requests_are_rejected(request_: Request, status: int) -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        with pytest.raises(Problem) as problem:
            await StreamRoutes(cluster, FeedRegistry()).stream(request_)
        assert problem.value.status == status

    with_queue(scenario)


# WebSockets


def test_a_websocket_gets_the_next_message_for_each_settlement() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, *(b"%d" % number for number in range(10)))
        streams = StreamRoutes(cluster, FeedRegistry())
        socket, talking = await socket_of(streams, max_in_flight="3", lease="1h")
        await until(lambda: len(socket.messages) == 3)
        await asyncio.sleep(30.0)
        assert len(socket.messages) == 3
        socket.say(ack=socket.messages[0]["receipt"])
        await until(lambda: len(socket.messages) == 4, 1.0)
        socket.say(ack=[one["receipt"] for one in socket.messages[1:3]])
        await until(lambda: len(socket.messages) == 6, 1.0)
        assert [one["value"] for one in socket.messages] == list(range(6))
        socket.say_raw(None)
        await talking

    with_queue(scenario)


def test_nack_reject_and_extend_over_a_websocket() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"1", b"2", b"3")
        socket, talking = await socket_of(StreamRoutes(cluster, FeedRegistry()), lease="10s")
        await until(lambda: len(socket.messages) == 3)
        nacked, rejected, extended = (one["receipt"] for one in socket.messages)
        socket.say(nack=nacked, delay="2s", reason="busy")
        socket.say(reject=rejected, reason="broken")
        socket.say(extend=extended, lease="1h")
        await until(lambda: len(socket.messages) == 4, 4.0)
        assert (socket.messages[3]["value"], socket.messages[3]["attempt"]) == (1, 2)
        socket.say(ack=socket.messages[3]["receipt"])
        await asyncio.sleep(30.0)
        assert len(socket.messages) == 4
        assert (await cluster.topic("jobs.dlq")).ready
        socket.say_raw(None)
        await talking

    with_queue(scenario)


def test_failed_settlements_and_invalid_frames_are_reported() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"1")
        socket, talking = await socket_of(StreamRoutes(cluster, FeedRegistry()), lease="1h")
        await until(lambda: len(socket.messages) == 1)
        receipt = socket.messages[0]["receipt"]
        for frame in ("nonsense", b"\xff\x00", '{"ack": 5}'):
            socket.say_raw(frame)
        socket.say(ack=receipt)
        await until(lambda: len(socket.got) == 4)
        assert [one["error"]["code"] for one in socket.got[1:]] == ["invalid_frame"] * 3
        await asyncio.sleep(1.0)
        socket.say(ack=[receipt, "nonsense"])
        await until(lambda: len(socket.got) == 5)
        assert [one["code"] for one in socket.got[4]["refused"]] == ["invalid_request", "lease_lost"]
        socket.say_raw(None)
        await talking

    with_queue(scenario)


def test_unsettled_messages_are_released_when_the_websocket_closes() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"1", b"2", b"3")
        streams = StreamRoutes(cluster, FeedRegistry())
        for is_cancelled in (False, True):
            socket, talking = await socket_of(streams, lease="1h")
            await until(lambda socket=socket: len(socket.messages) == 3)  # type: ignore[misc]
            if is_cancelled:
                talking.cancel()
            else:
                socket.say_raw(None)
            await asyncio.wait([talking])
            assert await leased(cluster) == 0

    with_queue(scenario)


def test_a_websocket_that_fails_while_sending_ends_the_handler() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        socket, talking = await socket_of(StreamRoutes(cluster, FeedRegistry()), lease="1h")
        socket.closed_with = 1006
        await put(cluster, b"1")
        await talking
        assert await leased(cluster) == 0

    with_queue(scenario)


def test_unsent_messages_of_a_failed_websocket_do_not_count_as_delivered() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"1", b"2", b"3")
        socket, talking = await socket_of(StreamRoutes(cluster, FeedRegistry()), lease="1h")
        socket.breaks_after = 1
        await talking
        async with Subscription(cluster, "jobs", "workers") as other:
            attempts = {message.value: message.attempt for message in await other.lease(10)}
        assert attempts == {b"1": 2, b"2": 2, b"3": 1}

    with_queue(scenario)


def test_a_websocket_of_a_deleted_subscription_is_closed_with_an_error() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        socket, talking = await socket_of(StreamRoutes(cluster, FeedRegistry()))
        await asyncio.sleep(1.0)
        await SubscriptionAdmin(cluster).delete("jobs", "workers")
        await talking
        assert socket.got[0]["error"]["code"] == "subscription_not_found"
        assert socket.closed_with == 1011

    with_queue(scenario)
