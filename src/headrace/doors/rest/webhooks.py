"""PUT, GET and DELETE /subscriptions/{subscription}/push: configure push of a subscription and get its status.

Push is part of the configuration of one subscription of one topic, and is deleted with it. If push is configured
without a secret, one is generated and returned in the response; it cannot be read later. The status is that of the
process that sends the response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.client.cluster import Cluster
from headrace.client.pushes import PushSettings, delete_push, get_push, set_push
from headrace.doors.rest.bodies import Duration, duration_ms, parse_body, shown_time
from headrace.http.message import Answer, Request, Response, json_response
from headrace.http.problem import Problem
from headrace.http.routes import Access, Operation, Parameter, Route, Side, Subject, Verb
from headrace.push.pusher import PushStatus
from headrace.runtime.eager import in_task

StatusOf = Callable[[str, str], PushStatus | None]
"""Returns the push status by topic and subscription."""

_BODY_BYTES_MAX = 16 << 10
_PROBLEMS = (401, 403, 404, 409, 429, 503)


class PushBody(msgspec.Struct, forbid_unknown_fields=True):
    """Defaults of omitted fields: 8 concurrent requests, no rate limit, a timeout of 10 seconds. An omitted secret is
    kept, or generated if there is none."""

    url: Annotated[str, Meta(min_length=1, max_length=2000)]
    secret: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1000)] | None = None
    rate: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    timeout: Duration | None = None


class PushState(msgspec.Struct):
    """The status in the process that sends the response, since push was configured or the process was started."""

    circuit: str
    in_flight: int
    delivered: int
    failed: int
    rejected: int
    last_error: str | None
    last_error_at: str | None


class PushAnswer(msgspec.Struct):
    """`secret` is present only if it was just generated. `status` is null in a process that does not push (yet)."""

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
        self._status_of = status_of

    def routes(self) -> list[Route]:
        pattern = "/subscriptions/{subscription}/push"
        topic = [Parameter("topic", str, "The topic, if several topics have a subscription of this name.")]
        manage = Access(Verb.MANAGE, Subject.SUBSCRIPTION)
        put = Operation(
            "Push the messages of a subscription to a URL.",
            {200: PushAnswer},
            PushBody,
            topic,
            (400, 401, 403, 404, 409, 413, 415, 422, 429, 503),
        )
        get = Operation("Get the push configuration and status.", {200: PushAnswer}, None, topic, _PROBLEMS)
        delete = Operation("Stop pushing.", {204: None}, None, topic, _PROBLEMS)
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
        made = await set_push(self._cluster, topic, name, push_settings(body))
        answer = await self._answer(request)
        if made is not None:
            answer.secret = made
        return json_response(answer)

    async def get(self, request: Request) -> Answer:
        return json_response(await self._answer(request))

    async def delete(self, request: Request) -> Answer:
        await in_task()
        await self._answer(request)
        await delete_push(self._cluster, request.params["topic"], request.params["subscription"])
        return Response(204)

    async def _answer(self, request: Request) -> PushAnswer:
        name, topic = request.params["subscription"], request.params["topic"]
        push = await get_push(self._cluster, topic, name)
        if push is None:
            raise Problem(
                404,
                "push_not_found",
                f"push is not configured for subscription {name}",
                "PUT {'url': ...} to configure push, or GET .../messages to pull messages",
            )
        status = self._status_of(topic, name)
        return PushAnswer(
            subscription=name,
            url=push.url,
            concurrency=push.concurrency,
            rate=push.rate,
            timeout=_shown_duration(push.timeout_ms),
            is_signed=push.has_secret,
            status=None if status is None else _state(status),
        )


def push_settings(body: PushBody) -> PushSettings:
    timeout_ms = None if body.timeout is None else duration_ms(body.timeout, "timeout")
    return PushSettings(body.url, body.secret, body.concurrency, body.rate, timeout_ms)


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
