"""Pull messages: a limited number, with a long poll for the first one, each with the receipt that settles it.

The pulls of one subscription share one queue (`client.pulling`), so that many waiting clients cause a single Lease
request. No message is leased for a client that disconnects while it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from headrace.client.leased import Message
from headrace.client.pulling import Pullers
from headrace.doors.rest.bodies import (
    clean,
    content_type_of,
    duration_ms,
    integer,
    invalid,
    shown_headers,
    shown_key,
    shown_time,
    shown_value,
)
from headrace.doors.rest.rechecks import IsStillWelcome, always_welcome, no_longer_welcome
from headrace.doors.rest.subscription_directory import SubscriptionDirectory
from headrace.http.message import Header, Request, Response
from headrace.http.problem import Problem
from headrace.http.routes import Access, Operation, Parameter, Route, Side, Subject, Verb
from headrace.model.durations import TIME_MS_MAX
from headrace.model.errors import GroupIdNotFound, UnknownTopicOrPartition

MESSAGES_MAX = 1000
WAIT_MS_MAX = 60_000
LEASE_MS_MIN, LEASE_MS_MAX = 100, 12 * 3_600_000
_MESSAGES = 10
_RAW = "application/octet-stream"
_NO_STORE: Sequence[Header] = [("cache-control", "no-store")]


class PulledMessage(msgspec.Struct):
    """A message that is leased until `lease_until`. It has `value` (JSON or text) or `value_base64`, or neither if its
    value is null; likewise for the key. `attempt` is 1 for the first delivery."""

    message_id: str
    receipt: str
    attempt: int
    published_at: str
    lease_until: str
    headers: dict[str, str | None]
    value: Any = UNSET
    value_base64: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_base64: str | UnsetType = UNSET


class PulledMessages(msgspec.Struct):
    messages: list[PulledMessage]


_PARAMETERS = (
    Parameter("max_messages", int, f"The maximum number of messages, 1 to {MESSAGES_MAX}; default {_MESSAGES}."),
    Parameter("wait", str, "How long to wait for the first message, up to 60s; by default the pull does not wait."),
    Parameter("lease", str, "The lease duration, for example 5m; default: as the subscription is configured."),
)
_TOPIC = Parameter("topic", str, "The topic, if several topics have a subscription of this name.")
_ACCEPT = Parameter(
    "accept",
    str,
    f"With {_RAW} and max_messages=1 the response body is the raw value, and headers contain the rest; 204 if there is "
    "no message.",
    where="header",
)


class Pulls:
    def __init__(
        self, pullers: Pullers, directory: SubscriptionDirectory, is_welcome: IsStillWelcome = always_welcome
    ) -> None:
        self._pullers = pullers
        self._directory = directory
        self._is_welcome = is_welcome

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/subscriptions/{subscription}/messages",
                self.pull,
                Access(Verb.CONSUME, Subject.SUBSCRIPTION),
                _operation("Pull messages of a subscription", [*_PARAMETERS, _TOPIC, _ACCEPT]),
                Side.SUBSCRIBE,
            ),
            Route(
                "GET",
                "/topics/{topic}/subscriptions/{subscription}/messages",
                self.pull_of_topic,
                Access(Verb.CONSUME, Subject.TOPIC),
                _operation("Pull messages of a subscription of this topic", [*_PARAMETERS, _ACCEPT]),
                Side.SUBSCRIBE,
            ),
        ]

    async def pull_of_topic(self, request: Request) -> Response:
        await self._directory.topic_of(request.params["subscription"], request.params["topic"])
        return await self.pull(request)

    async def pull(self, request: Request) -> Response:
        name, topic = request.params["subscription"], request.params["topic"]
        query = request.query
        count = integer(query, "max_messages", _MESSAGES, 1, MESSAGES_MAX)
        wait_ms = duration_ms(query["wait"], "wait") if "wait" in query else 0
        if wait_ms > WAIT_MS_MAX:
            raise invalid("wait", f"the maximum is 60 s, not {query['wait'][:40]}")
        lease_seconds = lease_ms(query["lease"]) / 1000 if "lease" in query else None
        is_raw = request.headers.get("accept") == _RAW
        if is_raw and count != 1:
            raise invalid("max_messages", f"a response as {_RAW} contains only one message", "use max_messages=1")
        if request.method == "HEAD":
            raise Problem(405, "method_not_allowed", "a pull leases messages", "use GET", [("allow", "GET")])
        puller = self._pullers.of(topic, name, lease_seconds)
        try:
            messages = await puller.pull(count, wait_ms / 1000)
        except (GroupIdNotFound, UnknownTopicOrPartition):
            self._directory.forget(name)
            raise
        if wait_ms and not await self._is_welcome(request):
            puller.release(messages)
            raise no_longer_welcome()
        if is_raw:
            return raw_answer(messages[0]) if messages else Response(204, b"", headers=_NO_STORE)
        body = PulledMessages([pulled(message) for message in messages])
        return Response(200, _ENCODER.encode(body), headers=_NO_STORE)


_ENCODER = msgspec.json.Encoder()
_PLAIN = "!#$&'()*+,-./:;<=>?@[]^_`{|}~"  # characters that need no escape in a header value


def lease_ms(value: str | float) -> int:
    """Parse a lease duration, or raise `Problem` 422 if it is out of range."""
    found = duration_ms(value, "lease")
    if not LEASE_MS_MIN <= found <= LEASE_MS_MAX:
        raise invalid("lease", f"the lease duration must be from 100ms to 12h, not {str(value)[:40]}")
    return found


def pulled(message: Message) -> PulledMessage:
    """Convert a leased message, also one that was leased by a stream."""
    (place, attempt, epoch, member), timestamp_ms, key, value, headers, until_ms = message
    message_id = f"{place.topic}:{place.partition}:{place.offset}"
    shown = PulledMessage(
        message_id,
        f"{message_id}/{attempt}/{epoch}/{member}",
        attempt,
        _moment(timestamp_ms),
        _moment(until_ms),
        shown_headers(headers) if headers else {},
    )
    if value is not None:
        shown.value, shown.value_base64 = shown_value(value, headers)
    if key is not None:
        shown.key, shown.key_base64 = shown_key(key)
    return shown


class _Seconds(dict[int, str]):
    """Formatted seconds; messages are ordered by time, so that most share their second with others."""

    def __missing__(self, second: int) -> str:
        if len(self) >= _SECONDS_MAX:
            self.clear()
        text = self[second] = shown_time(second * 1000)[:-5]
        return text


_SECONDS_MAX = 1000
_SECONDS = _Seconds()
_FRACTIONS = [f".{number:03d}Z" for number in range(1000)]


def _moment(time_ms: int) -> str:
    """Format like `shown_time`, at a fifth of the cost."""
    if not 0 <= time_ms <= TIME_MS_MAX:
        return shown_time(time_ms)
    return _SECONDS[time_ms // 1000] + _FRACTIONS[time_ms % 1000]


def message_json(message: Message) -> bytes:
    return _ENCODER.encode(pulled(message))


def raw_answer(message: Message) -> Response:
    """Return the raw value; characters that a header cannot contain are percent-encoded."""
    headers: list[Header] = [
        *_NO_STORE,
        ("headrace-message-id", str(message.id)),
        ("headrace-receipt", quote(str(message.receipt), safe=":/")),
        ("headrace-attempt", str(message.attempt)),
        ("headrace-published-at", shown_time(message.timestamp_ms)),
        ("headrace-lease-until", shown_time(message.leased_until_ms)),
    ]
    if message.key is not None:
        headers.append(("headrace-key", quote(message.key, safe=_PLAIN)))
    for name, value in message.headers:
        if value is not None:
            headers.append((f"headrace-header-{quote(clean(name), safe='')}", quote(value, safe=_PLAIN)))
    content_type = content_type_of(message.headers) or _RAW
    is_sane = content_type.isascii() and content_type.isprintable()
    return Response(200, message.value or b"", content_type if is_sane else _RAW, headers)


def _operation(summary: str, parameters: Sequence[Parameter]) -> Operation:
    return Operation(
        summary,
        answers={200: PulledMessages, 204: None},
        parameters=parameters,
        problems=(404, 409, 422),
    )
