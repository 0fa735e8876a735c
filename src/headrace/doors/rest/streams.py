"""GET /subscriptions/{subscription}/stream: messages as they come, by server-sent events or over a WebSocket.

A receiver has at most `max_in_flight` messages that it has not settled, and gets the next when it settles one: in the
WebSocket itself, or by POST .../ack, here or at another gateway. Leases are not extended by themselves: a message that
is not settled in its time is delivered again, as after a pull.

When a receiver is gone, what it was not sent goes to others at once. What it was sent over a WebSocket does, too; what
it was sent as an event stays leased for its time, for whoever reads events settles by other requests, and may yet.
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
_SETTLES_MAX = 64  # of one socket at a time
_EVENTS = "text/event-stream"
_CLOSED_BY_ERROR = 1011


class SubscriptionStreams:
    """`feeds` hears of what is settled by other requests of this process."""

    def __init__(self, cluster: Cluster, feeds: Feeds) -> None:
        self._cluster = cluster
        self._feeds = feeds

    def routes(self) -> list[Route]:
        parameters = [
            Parameter("max_in_flight", int, f"1 to {IN_FLIGHT_MAX} messages that are not settled, {IN_FLIGHT_DEFAULT}"),
            Parameter("lease", str, "How long a message is leased; else what the subscription is configured to."),
            Parameter("topic", str, "Which topic, if the subscription is in several."),
        ]
        operation = Operation(
            "Receive messages as they come: server-sent events, or a WebSocket if the request asks for one.",
            {200: bytes, 101: None},
            parameters=parameters,
            problems=(401, 403, 404, 405, 406, 409, 422, 429, 503),
        )
        access = Access(Verb.CONSUME, Subject.SUBSCRIPTION)
        pattern = "/subscriptions/{subscription}/stream"
        return [Route("GET", pattern, self.stream, access, operation, Side.SUBSCRIBE)]

    async def stream(self, request: Request) -> Answer:
        if request.method == "HEAD":
            raise Problem(405, "method_not_allowed", "a stream leases what it sends", "use GET", [("allow", "GET")])
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
            raise Problem(406, "not_acceptable", f"a stream is {_EVENTS}, not {accepted[:100]}", f"accept {_EVENTS}")
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
            await feed.give_back(undelivered, "its receiver has gone")

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
            pass  # the other end has gone
        finally:
            self._feeds.remove(feed)
            await feed.close()
            await feed.give_back(feed.held, "its receiver has gone")


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
    """Settle what the receiver says, several frames at a time; returns when it has closed."""
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
    """JSON may come with line ends between its parts, and each line of an event says what it is."""
    lines = data.replace(b"\r", b"\n").replace(b"\n", b"\ndata: ") if b"\n" in data or b"\r" in data else data
    return b"event: %b\ndata: %b\n\n" % (name, lines)
