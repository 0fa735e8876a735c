"""GET /subscriptions/{subscription}/stream: stream messages as server-sent events or over a WebSocket.

A receiver has at most `max_in_flight` unsettled messages, and gets the next one when it settles one: over the
WebSocket, or with POST .../ack to any gateway. Leases are not extended automatically: as after a pull, a message that
is not settled in time is delivered again.

When a receiver disconnects, messages that were not sent to it are released at once, and so are those that were sent
over a WebSocket. Messages that were sent as events stay leased until their leases expire, because the receiver settles
them with separate requests, which may still arrive.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.leased import Message
from headrace.client.settling import Refused
from headrace.doors.rest.bodies import integer
from headrace.doors.rest.problems import problem_of
from headrace.doors.rest.pulls import lease_ms, pulled
from headrace.doors.rest.stream_frames import RefusedReceipt, error_frame, read_frame, refused_frame
from headrace.http.message import Answer, Request, Streamed, Upgraded, WebSocket
from headrace.http.problem import Problem
from headrace.http.routes import Access, Operation, Parameter, Route, Side, Subject, Verb
from headrace.model.errors import HeadraceError
from headrace.push.feed import Feed
from headrace.push.foreign_settles import Feeds, watch
from headrace.runtime.eager import in_task
from headrace.runtime.supervise import Supervisor

IN_FLIGHT_DEFAULT, IN_FLIGHT_MAX = 100, 10_000
_KEEP_ALIVE_SECONDS = 15.0
_SETTLES_MAX = 64  # concurrent settle frames per socket
_EVENTS = "text/event-stream"
_CLOSED_BY_ERROR = 1011


class SubscriptionStreams:
    """`feeds` is notified of messages that other requests of this process settle."""

    def __init__(self, cluster: Cluster, feeds: Feeds) -> None:
        self._cluster = cluster
        self._feeds = feeds

    def routes(self) -> list[Route]:
        parameters = [
            Parameter(
                "max_in_flight", int, f"Maximum unsettled messages, 1 to {IN_FLIGHT_MAX}; default {IN_FLIGHT_DEFAULT}."
            ),
            Parameter("lease", str, "The lease duration; default: as the subscription is configured."),
            Parameter("topic", str, "The topic, if several topics have a subscription of this name."),
        ]
        operation = Operation(
            "Stream messages as server-sent events, or over a WebSocket if the request is an upgrade.",
            {200: bytes, 101: None},
            parameters=parameters,
            problems=(401, 403, 404, 405, 406, 409, 422, 429, 503),
        )
        access = Access(Verb.CONSUME, Subject.SUBSCRIPTION)
        pattern = "/subscriptions/{subscription}/stream"
        return [Route("GET", pattern, self.stream, access, operation, Side.SUBSCRIBE)]

    async def stream(self, request: Request) -> Answer:
        if request.method == "HEAD":
            raise Problem(405, "method_not_allowed", "a stream leases messages", "use GET", [("allow", "GET")])
        query = request.query
        feed = Feed(
            self._cluster,
            request.params["subscription"],
            [request.params["topic"]],
            integer(query, "max_in_flight", IN_FLIGHT_DEFAULT, 1, IN_FLIGHT_MAX),
            lease_ms(query["lease"]) / 1000 if "lease" in query else None,
        )
        if request.headers.get("upgrade", "").lower() == "websocket":
            return Upgraded(partial(self._talk, feed))
        accepted = request.headers.get("accept", _EVENTS)
        if not any(kind in accepted for kind in (_EVENTS, "text/*", "*/*")):
            raise Problem(
                406, "not_acceptable", f"a stream has the type {_EVENTS}, not {accepted[:100]}", f"accept {_EVENTS}"
            )
        headers = (("cache-control", "no-store"), ("x-accel-buffering", "no"))
        return Streamed(self._events(feed), _EVENTS, headers=headers)

    # Server-sent events

    async def _events(self, feed: Feed) -> AsyncIterator[bytes]:
        tasks = Supervisor()
        undelivered: Sequence[Message] = ()
        self._feeds.add(feed)
        try:
            tasks.spawn(watch(self._cluster, feed), "settles of a stream")
            yield b": messages follow\n\n"
            await in_task()
            while True:
                try:
                    undelivered = await feed.take(_KEEP_ALIVE_SECONDS)
                except HeadraceError as error:
                    yield _event(b"error", problem_of(error).response().body)
                    return
                yield b"".join(map(_message_event, undelivered)) or b": keep-alive\n\n"
                undelivered = ()
        finally:
            await in_task()
            self._feeds.remove(feed)
            await tasks.stop()
            await feed.close()
            await feed.give_back(undelivered, "the receiver disconnected")

    # WebSockets

    async def _talk(self, feed: Feed, socket: WebSocket) -> None:
        self._feeds.add(feed)
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(watch(self._cluster, feed)),
                    tasks.create_task(_send(feed, socket)),
                ]
                await _receive(feed, socket)
                for task in background:
                    task.cancel()
        except* ConnectionError:
            pass  # the client has disconnected
        finally:
            self._feeds.remove(feed)
            await feed.close()
            await feed.give_back(feed.held, "the receiver disconnected")


async def _send(feed: Feed, socket: WebSocket) -> None:
    while True:
        try:
            messages = await feed.take(_KEEP_ALIVE_SECONDS)
        except HeadraceError as error:
            await socket.send(error_frame(problem_of(error)))
            await socket.close(_CLOSED_BY_ERROR, error.message[:100])
            return
        unsent = deque(messages)
        try:
            while unsent:
                await socket.send(msgspec.json.encode(pulled(unsent.popleft())).decode())
        finally:
            await feed.release(unsent)


async def _receive(feed: Feed, socket: WebSocket) -> None:
    """Process the settle frames of the receiver, several concurrently; return when the socket is closed."""
    room = asyncio.Semaphore(_SETTLES_MAX)

    async def settle(text: str | bytes) -> None:
        try:
            frame = read_frame(text, feed.topics)
            refused: list[RefusedReceipt | Refused] = [*frame.refused]
            if frame.receipts:
                refused += await feed.settle(frame.receipts, frame.how)
            if refused:
                await socket.send(refused_frame(refused))
        except Problem as problem:
            await socket.send(error_frame(problem))
        finally:
            room.release()

    async with asyncio.TaskGroup() as settles:
        while (text := await socket.receive()) is not None:
            await room.acquire()
            settles.create_task(settle(text))


def _message_event(message: Message) -> bytes:
    return b"id: %b\n%b" % (str(message.id).encode(), _event(b"message", msgspec.json.encode(pulled(message))))


def _event(name: bytes, data: bytes) -> bytes:
    """Format an event. JSON may contain line breaks, and each line of an event requires a field name."""
    lines = data.replace(b"\r", b"\n").replace(b"\n", b"\ndata: ") if b"\n" in data or b"\r" in data else data
    return b"event: %b\ndata: %b\n\n" % (name, lines)
