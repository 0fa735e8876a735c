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

from headrace.client.admin.webhooks import WebhookSettings, delete_webhook, get_webhook, set_webhook
from headrace.client.cluster import Cluster
from headrace.http.message import HttpResponse, Request, Response, json_response
from headrace.http.problems import Problem
from headrace.http.routes import Access, AccessSubject, ForwarderRole, Operation, Route, Verb
from headrace.protocols.rest.bodies import Duration, duration_ms, parse_body, rfc3339_time
from headrace.protocols.rest.subscription_directory import TOPIC_PARAMETER
from headrace.push.webhook_pusher import WebhookStatus
from headrace.runtime.inline_start import switch_to_task

StatusOf = Callable[[str, str], WebhookStatus | None]
"""Returns the push status by topic and subscription."""

_BODY_BYTES_MAX = 16 << 10


class WebhookSettingsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Defaults of omitted fields: 8 concurrent requests, no rate limit, a timeout of 10 seconds. An omitted secret is
    kept, or generated if there is none."""

    url: Annotated[str, Meta(min_length=1, max_length=2000)]
    secret: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1000)] | None = None
    rate: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    timeout: Duration | None = None


class WebhookState(msgspec.Struct):
    """The status in the process that sends the response, since push was configured or the process was started."""

    circuit: str
    in_flight: int
    delivered: int
    failed: int
    rejected: int
    last_error: str | None
    last_error_at: str | None


class WebhookBody(msgspec.Struct):
    """`secret` is present only if it was just generated. `status` is null in a process that does not push (yet)."""

    subscription: str
    url: str
    concurrency: int
    rate: int
    timeout: str
    is_signed: bool
    secret: str | UnsetType = UNSET
    status: WebhookState | None = None


class WebhookRoutes:
    def __init__(self, cluster: Cluster, status_of: StatusOf) -> None:
        self._cluster = cluster
        self._status_of = status_of

    def routes(self) -> list[Route]:
        pattern = "/subscriptions/{subscription}/push"
        topic = (TOPIC_PARAMETER,)
        manage = Access(Verb.MANAGE, AccessSubject.SUBSCRIPTION)
        put = Operation("Push the messages of a subscription to a URL.", {200: WebhookBody}, WebhookSettingsBody, topic)
        get = Operation("Get the push configuration and status.", {200: WebhookBody}, None, topic)
        delete = Operation("Stop pushing.", {204: None}, None, topic)
        read = Access(Verb.READ, AccessSubject.SUBSCRIPTION)
        return [
            Route("PUT", pattern, self.put, manage, put, ForwarderRole.SUBSCRIBE, _BODY_BYTES_MAX),
            Route("GET", pattern, self.get, read, get, ForwarderRole.SUBSCRIBE),
            Route("DELETE", pattern, self.delete, manage, delete, ForwarderRole.SUBSCRIBE),
        ]

    async def put(self, request: Request) -> HttpResponse:
        name, topic = request.params["subscription"], request.params["topic"]
        settings = parse_body(request, _DECODER)
        await switch_to_task()
        secret = await set_webhook(self._cluster, topic, name, webhook_settings(settings))
        body = await self._webhook_body(request)
        if secret is not None:
            body.secret = secret
        return json_response(body)

    async def get(self, request: Request) -> HttpResponse:
        return json_response(await self._webhook_body(request))

    async def delete(self, request: Request) -> HttpResponse:
        await switch_to_task()
        await self._webhook_body(request)
        await delete_webhook(self._cluster, request.params["topic"], request.params["subscription"])
        return Response(204)

    async def _webhook_body(self, request: Request) -> WebhookBody:
        name, topic = request.params["subscription"], request.params["topic"]
        push = await get_webhook(self._cluster, topic, name)
        if push is None:
            raise Problem(
                404,
                "push_not_found",
                f"push is not configured for subscription {name}",
                "PUT {'url': ...} to configure push, or GET .../messages to pull messages",
            )
        status = self._status_of(topic, name)
        return WebhookBody(
            subscription=name,
            url=push.url,
            concurrency=push.concurrency,
            rate=push.rate,
            timeout=_shown_duration(push.timeout_ms),
            is_signed=push.has_secret,
            status=None if status is None else _webhook_state(status),
        )


def webhook_settings(body: WebhookSettingsBody) -> WebhookSettings:
    timeout_ms = None if body.timeout is None else duration_ms(body.timeout, "timeout")
    return WebhookSettings(body.url, body.secret, body.concurrency, body.rate, timeout_ms)


_DECODER = msgspec.json.Decoder(WebhookSettingsBody)


def _webhook_state(status: WebhookStatus) -> WebhookState:
    return WebhookState(
        circuit=status.circuit,
        in_flight=status.in_flight,
        delivered=status.delivered,
        failed=status.failed,
        rejected=status.rejected,
        last_error=status.last_error or None,
        last_error_at=rfc3339_time(status.last_error_ms) if status.last_error else None,
    )


def _shown_duration(milliseconds: int) -> str:
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"
