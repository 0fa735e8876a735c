"""Streams of a subscription by server-sent events or WebSocket: messages out, settles in.

The frames of a WebSocket stream other than messages: settle requests of the receiver, and error responses.

    {"ack": RECEIPT}  {"nack": RECEIPT, "delay": "5s", "reason": "busy"}  {"reject": RECEIPT, "reason": "broken"}
    {"extend": RECEIPT, "lease": "1m"}                                    a list of receipts is allowed as well
    {"refused": [{"receipt": RECEIPT, "code": "lease_lost", "message": ...}]}
    {"error": {"code": ..., "message": ..., "next": ...}}                 for an invalid frame

There is no response for messages that were settled successfully.

- A receiver has at most `max_in_flight` unsettled messages, and gets the next one when it settles one: over the
  WebSocket, or with POST .../ack to any gateway.
- Leases are not extended automatically: as after a pull, a message that is not settled in time is delivered again.
- When a receiver disconnects, messages that were not sent to it are released at once, and so are those that were sent
  over a WebSocket. Messages that were sent as events stay leased until their leases expire, because the receiver
  settles them with separate requests, which may still arrive.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from headrace.client.cluster import Cluster
from headrace.client.queues.feed import Feed, FeedRegistry, forget_foreign_settlements
from headrace.client.queues.leased_messages import LeasedMessage, LeaseReceipt, receipt_from_text
from headrace.client.queues.settling import ACK, EXTEND, NACK, REJECT, FailedSettlement
from headrace.http.message import HttpResponse, Request, StreamedResponse, WebSocket, WebSocketResponse
from headrace.http.problems import Problem
from headrace.http.routes import Access, AccessSubject, ForwarderRole, Operation, Parameter, Route, Verb
from headrace.model.errors import HeadraceError, InvalidRequest
from headrace.protocols.rest.bodies import JSON_ERRORS, Duration, duration_ms, integer_parameter
from headrace.protocols.rest.error_responses import problem_of_error
from headrace.protocols.rest.pull import lease_ms, pulled_message
from headrace.protocols.rest.subscription_directory import TOPIC_PARAMETER
from headrace.runtime.inline_start import switch_to_task
from headrace.runtime.tasks import Supervisor
from headrace.wire.messages.queues import SettleItem

_UNSET = -1
_NEXT_STEP = 'send {"ack": RECEIPT}, {"nack": RECEIPT}, {"extend": RECEIPT} or {"reject": RECEIPT}'
_RECEIPTS_MAX = 10_000

Receipts = str | list[str]


class SettleFrame(msgspec.Struct, forbid_unknown_fields=True):
    ack: Receipts | UnsetType = UNSET
    nack: Receipts | UnsetType = UNSET
    reject: Receipts | UnsetType = UNSET
    extend: Receipts | UnsetType = UNSET
    delay: Duration | None = None
    lease: Duration | None = None
    reason: str | None = None


class FailedReceipt(msgspec.Struct):
    receipt: str
    code: str
    message: str


class ParsedSettleFrame(NamedTuple):
    """A parsed settle frame; invalid receipts are already separated."""

    receipts: Sequence[LeaseReceipt]
    how: SettleItem
    refused: Sequence[FailedReceipt]


_DECODER = msgspec.json.Decoder(SettleFrame)


def read_frame(text: str | bytes, topics: Collection[str]) -> ParsedSettleFrame:
    """Parse a frame, or raise `Problem`. A stream cannot settle messages of other topics."""
    try:
        frame = _DECODER.decode(text)
    except JSON_ERRORS as error:
        raise _invalid_frame(f"the frame is invalid: {error}") from None
    verbs = {ACK: frame.ack, NACK: frame.nack, REJECT: frame.reject, EXTEND: frame.extend}
    given = [(how, receipts) for how, receipts in verbs.items() if receipts is not UNSET]
    if len(given) != 1:
        raise _invalid_frame(f"a frame must contain exactly one operation, not {len(given)}")
    how, texts = given[0]
    assert not isinstance(texts, UnsetType)
    texts = [texts] if isinstance(texts, str) else texts
    if len(texts) > _RECEIPTS_MAX:
        raise _invalid_frame(f"a frame may contain up to {_RECEIPTS_MAX} receipts, not {len(texts)}")
    item = SettleItem(
        how=how,
        delay_ms=_UNSET if frame.delay is None else duration_ms(frame.delay, "delay"),
        lease_ms=_UNSET if frame.lease is None else duration_ms(frame.lease, "lease"),
        reason=frame.reason,
    )
    receipts: list[LeaseReceipt] = []
    refused: list[FailedReceipt] = []
    for one in texts:
        try:
            receipts.append(_receipt(one, topics))
        except HeadraceError as error:
            refused.append(_failed_receipt(one, error))
    return ParsedSettleFrame(receipts, item, refused)


def failed_receipts_frame(refused: Sequence[FailedReceipt | FailedSettlement]) -> str:
    failed = [
        _failed_receipt(str(one.receipt), one.error) if isinstance(one, FailedSettlement) else one for one in refused
    ]
    return msgspec.json.encode({"refused": failed}).decode()


def error_frame(problem: Problem) -> str:
    return msgspec.json.encode({"error": problem.body}).decode()


def _receipt(text: str, topics: Collection[str]) -> LeaseReceipt:
    receipt = receipt_from_text(text)
    if receipt.id.topic not in topics:
        raise InvalidRequest(f"the receipt belongs to topic {receipt.id.topic}, which is not in this stream")
    return receipt


def _failed_receipt(receipt: str, error: HeadraceError) -> FailedReceipt:
    return FailedReceipt(receipt, problem_of_error(error).code, error.message)


def _invalid_frame(message: str) -> Problem:
    return Problem(422, "invalid_frame", message, _NEXT_STEP)


IN_FLIGHT_DEFAULT, IN_FLIGHT_MAX = 100, 10_000
_KEEP_ALIVE_SECONDS = 15.0
_SETTLES_MAX = 64  # concurrent settle frames per socket
_EVENTS = "text/event-stream"
_CLOSED_BY_ERROR = 1011


class StreamRoutes:
    """`feeds` is notified of messages that other requests of this process settle."""

    def __init__(self, cluster: Cluster, feeds: FeedRegistry) -> None:
        self._cluster = cluster
        self._feeds = feeds

    def routes(self) -> list[Route]:
        parameters = [
            Parameter(
                "max_in_flight", int, f"Maximum unsettled messages, 1 to {IN_FLIGHT_MAX}; default {IN_FLIGHT_DEFAULT}."
            ),
            Parameter("lease", str, "The lease duration; default: as the subscription is configured."),
            TOPIC_PARAMETER,
        ]
        operation = Operation(
            "Stream messages as server-sent events, or over a WebSocket if the request is an upgrade.",
            {200: bytes, 101: None},
            parameters=parameters,
            problems=(405, 406),
        )
        access = Access(Verb.CONSUME, AccessSubject.SUBSCRIPTION)
        pattern = "/subscriptions/{subscription}/stream"
        return [Route("GET", pattern, self.stream, access, operation, ForwarderRole.SUBSCRIBE)]

    async def stream(self, request: Request) -> HttpResponse:
        if request.method == "HEAD":
            raise Problem(405, "method_not_allowed", "a stream leases messages", "use GET", [("allow", "GET")])
        query = request.query
        feed = Feed(
            self._cluster,
            request.params["subscription"],
            [request.params["topic"]],
            integer_parameter(query, "max_in_flight", IN_FLIGHT_DEFAULT, 1, IN_FLIGHT_MAX),
            lease_ms(query["lease"]) / 1000 if "lease" in query else None,
        )
        if request.headers.get("upgrade", "").lower() == "websocket":
            return WebSocketResponse(partial(self._run_websocket, feed))
        accepted = request.headers.get("accept", _EVENTS)
        if not any(kind in accepted for kind in (_EVENTS, "text/*", "*/*")):
            raise Problem(
                406, "not_acceptable", f"a stream has the type {_EVENTS}, not {accepted[:100]}", f"accept {_EVENTS}"
            )
        headers = (("cache-control", "no-store"), ("x-accel-buffering", "no"))
        return StreamedResponse(self._events(feed), _EVENTS, headers=headers)

    # Server-sent events

    async def _events(self, feed: Feed) -> AsyncIterator[bytes]:
        tasks = Supervisor()
        undelivered: Sequence[LeasedMessage] = ()
        self._feeds.add(feed)
        try:
            tasks.spawn(forget_foreign_settlements(self._cluster, feed), "settles of a stream")
            yield b": messages follow\n\n"
            await switch_to_task()
            while True:
                try:
                    undelivered = await feed.take(_KEEP_ALIVE_SECONDS)
                except HeadraceError as error:
                    yield _event(b"error", problem_of_error(error).response().body)
                    return
                yield b"".join(map(_message_event, undelivered)) or b": keep-alive\n\n"
                undelivered = ()
        finally:
            await switch_to_task()
            self._feeds.remove(feed)
            await tasks.stop()
            await feed.close()
            await feed.give_back(undelivered, "the receiver disconnected")

    # WebSockets

    async def _run_websocket(self, feed: Feed, socket: WebSocket) -> None:
        self._feeds.add(feed)
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(forget_foreign_settlements(self._cluster, feed)),
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
            await socket.send(error_frame(problem_of_error(error)))
            await socket.close(_CLOSED_BY_ERROR, error.message[:100])
            return
        unsent = deque(messages)
        try:
            while unsent:
                await socket.send(msgspec.json.encode(pulled_message(unsent.popleft())).decode())
        finally:
            await feed.release(unsent)


async def _receive(feed: Feed, socket: WebSocket) -> None:
    """Process the settle frames of the receiver, several concurrently; return when the socket is closed."""
    room = asyncio.Semaphore(_SETTLES_MAX)

    async def settle(text: str | bytes) -> None:
        try:
            frame = read_frame(text, feed.topics)
            refused: list[FailedReceipt | FailedSettlement] = [*frame.refused]
            if frame.receipts:
                refused += await feed.settle(frame.receipts, frame.how)
            if refused:
                await socket.send(failed_receipts_frame(refused))
        except Problem as problem:
            await socket.send(error_frame(problem))
        finally:
            room.release()

    async with asyncio.TaskGroup() as settles:
        while (text := await socket.receive()) is not None:
            await room.acquire()
            settles.create_task(settle(text))


def _message_event(message: LeasedMessage) -> bytes:
    return b"id: %b\n%b" % (str(message.id).encode(), _event(b"message", msgspec.json.encode(pulled_message(message))))


def _event(name: bytes, data: bytes) -> bytes:
    """Format an event. JSON may contain line breaks, and each line of an event requires a field name."""
    lines = data.replace(b"\r", b"\n").replace(b"\n", b"\ndata: ") if b"\n" in data or b"\r" in data else data
    return b"event: %b\ndata: %b\n\n" % (name, lines)
