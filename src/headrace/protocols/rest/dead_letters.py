"""Dead letters over REST: list, redrive and discard those of a subscription.

`<topic>.dlq` contains the dead letters of all subscriptions of a topic; these requests only access those of the
subscription in the path. A request processes a limited number in a limited time: if its response is not complete,
repeat the same request to continue.

Dead letters of an earlier topic of the same name are not accessed. Dead letters without a topic id, which earlier
versions wrote, are accessed only if the client has permission for `<topic>.dlq` itself (decision 029).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.client.cluster import Cluster
from headrace.client.queues.dead_letters import DeadLetterQueue, DeadLetterSelection, SettleLimits
from headrace.client.queues.redrive import MAX_REDRIVES, DeadLetter, RedriveOptions, RedriveResult
from headrace.http.message import Request, Response, json_response
from headrace.http.problems import Problem
from headrace.http.routes import Access, AccessSubject, ForwarderRole, Operation, Parameter, Route, Verb
from headrace.machines.queues.filters import Filter, compile_filter
from headrace.model.errors import InvalidConfig, InvalidRequest, UnknownTopicOrPartition
from headrace.model.ids import MessageId, message_id_from_text
from headrace.model.message_headers import Headers, dead_letter_origin
from headrace.model.names import dead_letter_topic
from headrace.protocols.rest.bodies import (
    MessageBody,
    boolean_parameter,
    header_fields,
    integer_parameter,
    invalid_parameter,
    key_fields,
    parse_body,
    rfc3339_time,
    value_fields,
)
from headrace.protocols.rest.subscription_directory import TOPIC_PARAMETER
from headrace.protocols.rest.topics import ensure_writable
from headrace.runtime.inline_start import switch_to_task

_LIMIT, _LIMIT_MAX = 100, 1000
_SETTLED, _SETTLED_MAX = 1000, 10_000
_SECONDS = 20.0  # per request
_REPORTED_MAX = 100  # errors that are reported individually
_BODY_BYTES_MAX = 256 << 10

_Ids = Annotated[list[str], Meta(min_length=1, max_length=1000)]
_Max = Annotated[int, Meta(ge=1, le=_SETTLED_MAX)]
_FILTER_TEXT = "Only matching ones, for example header.type = 'order' and key like 'eu-%'."


class DeadLetterBody(MessageBody, kw_only=True):
    """A message that exhausted its delivery attempts or was rejected. `state` is ready, leased (it is being redriven)
    or settled (it was redriven or discarded)."""

    state: str
    died_at: str
    attempts: int
    reason: str
    origin: str
    redriven: int


class DeadLetterList(msgspec.Struct):
    """`more` is true if there are further dead letters."""

    dead_letters: list[DeadLetterBody]
    more: bool


class Redrive(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters to redrive, by ids or by filter, or all of them. By default, only this subscription receives
    the messages again, which the topic must still have. With `to_all`, copies are published to the topic, for all of
    its subscriptions; with `to`, to another topic. Further fields are the rate in messages per second, the maximum
    number, and how many times the messages may have been redriven before."""

    message_ids: _Ids | UnsetType = UNSET
    filter: str | None = None
    to: Annotated[str, Meta(min_length=1, max_length=249)] | None = None
    to_all: bool = False
    rate: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    max: _Max = _SETTLED
    max_redrives: Annotated[int, Meta(ge=1, le=1_000_000)] = MAX_REDRIVES
    dry_run: bool = False


class Discard(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters to discard: by ids, by filter, or explicitly all."""

    message_ids: _Ids | UnsetType = UNSET
    filter: str | None = None
    all: bool = False
    max: _Max = _SETTLED
    dry_run: bool = False


class FailedDeadLetter(msgspec.Struct):
    message_id: str
    message: str


class DeadLettersSettled(msgspec.Struct):
    """The numbers of dead letters that were (or would have been) redriven or discarded, and that were settled before or
    are being settled by another process. If `complete` is false, repeat the request to continue. `left` is the number
    of unsettled dead letters of the topic, of any subscription."""

    settled: int
    settled_before: int
    refused: int
    refusals: list[FailedDeadLetter]
    complete: bool
    left: int


_REDRIVE = msgspec.json.Decoder(Redrive)
_DISCARD = msgspec.json.Decoder(Discard)


class DeadLetterRoutes:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list_all(self, request: Request) -> Response:
        await switch_to_task()
        limit = integer_parameter(request.query, "limit", _LIMIT, 1, _LIMIT_MAX)
        with_settled = boolean_parameter(request.query, "settled")
        selection = DeadLetterSelection(wanted=_filter_of(request, request.query.get("filter")))
        shown: list[DeadLetterBody] = []
        deadline = self._cluster.clock.monotonic() + _SECONDS
        try:
            queue = self._queue(request, Verb.READ)
            async with aclosing(queue.letters(selection, with_settled=with_settled)) as letters:
                async for letter, state in letters:
                    if len(shown) == limit or self._cluster.clock.monotonic() > deadline:
                        return json_response(DeadLetterList(shown, more=True))
                    shown.append(_dead_letter_body(letter, state))
        except UnknownTopicOrPartition:
            pass  # the topic has no dead letters yet
        return json_response(DeadLetterList(shown, more=False))

    async def redrive(self, request: Request) -> Response:
        await switch_to_task()
        body = parse_body(request, _REDRIVE)
        if body.to is not None:
            ensure_writable(body.to)
            request.caller.require(Verb.PUBLISH, body.to)
            if body.to_all:
                raise Problem(422, "invalid_body", "`to` and `to_all` exclude each other", "specify one of them")
        options = RedriveOptions(body.to, body.rate, body.max_redrives, body.to_all)
        limits = SettleLimits(body.max, _SECONDS)
        return await self._settle(
            request, body, lambda queue, selected: queue.redrive(selected, options, dry_run=body.dry_run, limits=limits)
        )

    async def discard(self, request: Request) -> Response:
        await switch_to_task()
        body = parse_body(request, _DISCARD)
        if not body.all and body.filter is None and body.message_ids is UNSET:
            raise Problem(
                422, "invalid_body", "no dead letters are selected", "specify message_ids, a filter, or all: true"
            )
        limits = SettleLimits(body.max, _SECONDS)
        return await self._settle(
            request, body, lambda queue, selected: queue.discard(selected, dry_run=body.dry_run, limits=limits)
        )

    async def _settle(
        self,
        request: Request,
        body: Redrive | Discard,
        settle: Callable[[DeadLetterQueue, DeadLetterSelection], Awaitable[RedriveResult]],
    ) -> Response:
        queue = self._queue(request, Verb.MANAGE)
        ids = None if body.message_ids is UNSET else [_letter_id(one, queue.name) for one in body.message_ids]
        selected = DeadLetterSelection(ids, _filter_of(request, body.filter))
        try:
            await self._cluster.call_with_retries(lambda: self._cluster.topic(queue.name))
        except UnknownTopicOrPartition:  # the topic has no dead letters yet
            return json_response(DeadLettersSettled(0, 0, 0, [], complete=True, left=0))
        outcome = await settle(queue, selected)
        return json_response(
            DeadLettersSettled(
                settled=outcome.settled,
                settled_before=outcome.settled_before,
                refused=len(outcome.refused),
                refusals=[FailedDeadLetter(str(letter_id), why) for letter_id, why in outcome.refused[:_REPORTED_MAX]],
                complete=outcome.is_complete,
                left=await queue.count(),
            )
        )

    def _queue(self, request: Request, verb: Verb) -> DeadLetterQueue:
        topic = request.params["topic"]
        may_use_all = request.caller.may(verb, dead_letter_topic(topic))
        return DeadLetterQueue(self._cluster, topic, with_unmarked=may_use_all)

    def routes(self) -> list[Route]:
        one = "/subscriptions/{subscription}"
        manage, read = Access(Verb.MANAGE, AccessSubject.SUBSCRIPTION), Access(Verb.READ, AccessSubject.SUBSCRIPTION)
        list_ = Operation(
            "List the dead letters of a subscription, oldest first in each partition",
            {200: DeadLetterList},
            parameters=(
                Parameter("limit", Annotated[int, Meta(ge=1, le=_LIMIT_MAX)], f"At most this many; default {_LIMIT}."),
                Parameter("filter", str, _FILTER_TEXT),
                Parameter("settled", bool, "Include those that were redriven or discarded."),
                TOPIC_PARAMETER,
            ),
        )
        redrive = Operation("Redrive dead letters", {200: DeadLettersSettled}, Redrive, (TOPIC_PARAMETER,))
        discard = Operation("Discard dead letters", {200: DeadLettersSettled}, Discard, (TOPIC_PARAMETER,))
        return [
            Route("GET", f"{one}/dead-letters", self.list_all, read, list_, ForwarderRole.SUBSCRIBE),
            Route("POST", f"{one}/redrive", self.redrive, manage, redrive, ForwarderRole.SUBSCRIBE, _BODY_BYTES_MAX),
            Route("POST", f"{one}/discard", self.discard, manage, discard, ForwarderRole.SUBSCRIBE, _BODY_BYTES_MAX),
        ]


def _filter_of(request: Request, text: str | None) -> Filter:
    """Filter for dead letters of this subscription and topic: any client with write permission for the dead-letter
    topic could have written others."""
    topic, name = request.params["topic"], request.params["subscription"]
    try:
        matches = None if text is None else compile_filter(text)
    except InvalidConfig as error:
        raise invalid_parameter("filter", error.message, _FILTER_TEXT) from None

    def is_wanted(key: bytes | None, headers: Headers) -> bool:
        origin = dead_letter_origin(headers)
        is_ours = origin is not None and (origin.subscription, origin.topic) == (name, topic)
        return is_ours and (matches is None or matches(key, headers))

    return is_wanted


def _letter_id(text: str, queue: str) -> MessageId:
    try:
        found = message_id_from_text(text)
    except InvalidRequest as error:
        raise Problem(422, "invalid_message_id", error.message[:400], "GET .../dead-letters lists the ids") from None
    if found.topic != queue:
        raise Problem(
            422, "other_topic", f"{found} is not a dead letter of this topic", "GET .../dead-letters lists the ids"
        )
    return found


def _dead_letter_body(letter: DeadLetter, state: str) -> DeadLetterBody:
    record, origin = letter.record, letter.death
    assert origin is not None, "the filter requires an origin"
    shown = DeadLetterBody(
        message_id=str(letter.id),
        published_at=rfc3339_time(record.timestamp_ms),
        headers=header_fields(record.headers),
        state=state,
        died_at=rfc3339_time(origin.at_ms),
        attempts=origin.attempts,
        reason=origin.reason,
        origin=str(MessageId(origin.topic, origin.partition, origin.offset)),
        redriven=letter.redriven,
    )
    shown.value, shown.value_base64 = value_fields(record.value, record.headers)
    shown.key, shown.key_base64 = key_fields(record.key)
    return shown
