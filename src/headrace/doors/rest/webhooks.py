"""PUT, GET and DELETE /subscriptions/{subscription}/push: where a subscription's messages are sent, and how that goes.

A webhook is part of the configuration of subscriptions of a name, in whichever topics they are. So it is set and
deleted by who may manage all of those, and what is set here holds for the topic of the request only: nothing is sent
from topics that get a subscription of this name later. Its secret is told once, to whoever set a webhook without naming
one; nobody can read it afterwards. How it goes is told by each process for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.client.cluster import Cluster
from headrace.client.pushes import PushSettings, delete_push, get_push, set_push
from headrace.client.subscription_admin import SubscriptionAdmin
from headrace.doors.rest.bodies import Duration, duration_ms, parse_body, shown_time
from headrace.doors.rest.name_rights import require_name
from headrace.http.message import Answer, Request, Response, json_response
from headrace.http.problem import Problem
from headrace.http.routes import Access, Operation, Parameter, Route, Side, Subject, Verb
from headrace.push.pusher import PushStatus
from headrace.runtime.eager import in_task

StatusOf = Callable[[str], PushStatus | None]

_BODY_BYTES_MAX = 16 << 10
_PROBLEMS = (401, 403, 404, 409, 429, 503)


class PushBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is left out is as by default: 8 messages at a time, no limit per second, 10 seconds for an answer. A secret
    that is left out stays as it is, or is made up."""

    url: Annotated[str, Meta(min_length=1, max_length=2000)]
    secret: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1000)] | None = None
    rate: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    timeout: Duration | None = None


class PushState(msgspec.Struct):
    """How it goes in the process that answers, since the webhook was set or the process began."""

    circuit: str
    in_flight: int
    delivered: int
    failed: int
    rejected: int
    last_error: str | None
    last_error_at: str | None


class PushAnswer(msgspec.Struct):
    """`secret` is there only if it was just made up. `status` is null where nothing is pushed from, or not yet."""

    subscription: str
    url: str
    concurrency: int
    rate: int
    timeout: str
    is_signed: bool
    secret: str | UnsetType = UNSET
    status: PushState | None = None


class Webhooks:
    def __init__(self, cluster: Cluster, status_of: StatusOf) -> None:
        self._cluster = cluster
        self._admin = SubscriptionAdmin(cluster)
        self._status_of = status_of

    def routes(self) -> list[Route]:
        pattern = "/subscriptions/{subscription}/push"
        topic = [Parameter("topic", str, "Which topic, if the subscription is in several.")]
        manage = Access(Verb.MANAGE, Subject.SUBSCRIPTION)
        put = Operation(
            "Send the subscription's messages to a webhook.",
            {200: PushAnswer},
            PushBody,
            topic,
            (400, 401, 403, 404, 409, 413, 415, 422, 429, 503),
        )
        get = Operation("Where messages are sent, and how that goes.", {200: PushAnswer}, None, topic, _PROBLEMS)
        delete = Operation("Send them nowhere any more.", {204: None}, None, topic, _PROBLEMS)
        read = Access(Verb.READ, Subject.SUBSCRIPTION)
        return [
            Route("PUT", pattern, self.put, manage, put, Side.SUBSCRIBE, _BODY_BYTES_MAX),
            Route("GET", pattern, self.get, read, get, Side.SUBSCRIBE),
            Route("DELETE", pattern, self.delete, manage, delete, Side.SUBSCRIBE),
        ]

    async def put(self, request: Request) -> Answer:
        name, topic = request.params["subscription"], request.params["topic"]
        body = parse_body(request, _DECODER)
        await in_task()
        await require_name(request.caller, self._admin, name)
        made = await apply_push(self._cluster, name, body, topic)
        answer = await self._answer(request)
        if made is not None:
            answer.secret = made
        return json_response(answer)

    async def get(self, request: Request) -> Answer:
        return json_response(await self._answer(request))

    async def delete(self, request: Request) -> Answer:
        name = request.params["subscription"]
        await in_task()
        await self._answer(request)
        await require_name(request.caller, self._admin, name)
        await delete_push(self._cluster, name)
        return Response(204)

    async def _answer(self, request: Request) -> PushAnswer:
        name, topic = request.params["subscription"], request.params["topic"]
        push = await get_push(self._cluster, name)
        if push is None or topic not in (push.topics or (topic,)):
            raise Problem(
                404,
                "push_not_found",
                f"the messages of subscription {name} are not pushed",
                "PUT {'url': ...} here to push them, or GET .../messages to pull them",
            )
        status = self._status_of(name)
        return PushAnswer(
            subscription=name,
            url=push.url,
            concurrency=push.concurrency,
            rate=push.rate,
            timeout=_shown_duration(push.timeout_ms),
            is_signed=push.has_secret,
            status=None if status is None else _state(status),
        )


async def apply_push(cluster: Cluster, subscription: str, body: PushBody, topic: str | None = None) -> str | None:
    """Set the webhook, also with a subscription that is just being made; for this topic, or for all that have one of
    this name. Returns the secret if one was made up. Raises `Problem` 409 where the name is pushed for another
    topic."""
    timeout_ms = None if body.timeout is None else duration_ms(body.timeout, "timeout")
    topics = () if topic is None else (topic,)
    before = await get_push(cluster, subscription)
    if topics and before is not None and tuple(before.topics) not in ((), topics):
        raise Problem(
            409,
            "pushed_elsewhere",
            f"a subscription of the name {subscription} is pushed for another topic",
            "take another name for this subscription, or change headrace.push.* by its configuration",
        )
    settings = PushSettings(body.url, topics, body.secret, body.concurrency, body.rate, timeout_ms)
    return await set_push(cluster, subscription, settings)


_DECODER = msgspec.json.Decoder(PushBody)


def _state(status: PushStatus) -> PushState:
    return PushState(
        circuit=status.circuit,
        in_flight=status.in_flight,
        delivered=status.delivered,
        failed=status.failed,
        rejected=status.rejected,
        last_error=status.last_error or None,
        last_error_at=shown_time(status.last_error_ms) if status.last_error else None,
    )


def _shown_duration(milliseconds: int) -> str:
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"
