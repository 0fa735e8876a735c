"""The routes that configure a webhook and return its status."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.push.push_support import with_queue

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.admin.webhooks import WebhookPoller
from headrace.client.cluster import Cluster
from headrace.http.message import Request, Response
from headrace.http.problems import Problem
from headrace.http.routes import AccessSubject, Verb
from headrace.model.errors import HeadraceError
from headrace.protocols.rest.authorization import ANONYMOUS
from headrace.protocols.rest.error_responses import problem_of_error
from headrace.protocols.rest.webhooks import StatusOf, WebhookRoutes
from headrace.push.pusher import WebhookStatus
from headrace.testkit.world import World

URL = "https://receiver.test/hook"


def no_status(_topic: str, _subscription: str) -> None:
    return None


async def ask(
    cluster: Cluster,
    method: str,
    body: Any = None,
    status_of: StatusOf = no_status,
    topic: str = "jobs",
) -> tuple[int, Any]:
    routes = {route.method: route for route in WebhookRoutes(cluster, status_of).routes()}
    data = b"" if body is None else msgspec.json.encode(body)
    params = {"subscription": "workers", "topic": topic}
    request = Request(method, "/subscriptions/workers/push", {}, {}, data, "127.0.0.1", "id", params, ANONYMOUS)
    try:
        response = await routes[method].handle(request)
    except Problem as problem:
        response = problem.response()
    except HeadraceError as error:
        response = problem_of_error(error).response()
    assert isinstance(response, Response)
    return response.status, msgspec.json.decode(response.body) if response.body else None


def test_a_webhook_can_be_set_shown_and_deleted() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        assert (await ask(cluster, "GET"))[1]["code"] == "push_not_found"
        status, shown = await ask(cluster, "PUT", {"url": URL})
        assert (status, len(shown.pop("secret")) > 40) == (200, True)
        expected = {
            "subscription": "workers",
            "url": URL,
            "concurrency": 8,
            "rate": 0,
            "timeout": "10s",
            "is_signed": True,
            "status": None,
        }
        assert shown == expected
        assert await ask(cluster, "GET") == (200, expected)
        body = {"url": URL, "secret": "hush", "concurrency": 2, "rate": 5, "timeout": 1.5}
        status, shown = await ask(cluster, "PUT", body)
        assert shown == {**expected, "concurrency": 2, "rate": 5, "timeout": "1500ms"}
        assert await ask(cluster, "DELETE") == (204, None)
        assert (await ask(cluster, "DELETE"))[0] == (await ask(cluster, "GET"))[0] == 404

    with_queue(scenario)


def test_the_status_of_a_webhook_is_shown() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        status = WebhookStatus("workers", "jobs", URL, "open", 3, 10, 4, 1, "HTTP 500", 1_700_000_000_123)
        _, shown = await ask(cluster, "PUT", {"url": URL}, lambda *key: status if key == ("jobs", "workers") else None)
        assert shown["status"] == {
            "circuit": "open",
            "in_flight": 3,
            "delivered": 10,
            "failed": 4,
            "rejected": 1,
            "last_error": "HTTP 500",
            "last_error_at": "2023-11-14T22:13:20.123Z",
        }
        fresh = WebhookStatus("workers", "jobs", URL)
        _, shown = await ask(cluster, "GET", status_of=lambda *_: fresh)
        assert (shown["status"]["last_error"], shown["status"]["last_error_at"]) == (None, None)

    with_queue(scenario)


def test_a_webhook_belongs_to_one_topic() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await TopicAdmin(cluster).create(NewTopic("mine", 1))
        await SubscriptionAdmin(cluster).create("mine", "workers", Position(START))
        await ask(cluster, "PUT", {"url": URL})
        (push,) = await WebhookPoller(cluster).ask()
        assert push.topics == ["jobs"], "and no other topic with a subscription of this name"
        assert (await ask(cluster, "GET", topic="mine"))[0] == (await ask(cluster, "DELETE", topic="mine"))[0] == 404
        assert (await ask(cluster, "PUT", {"url": "http://elsewhere.test/"}, topic="mine"))[0] == 200
        assert (await ask(cluster, "GET"))[1]["url"] == URL
        assert (await ask(cluster, "DELETE", topic="mine"))[0] == 204
        assert (await ask(cluster, "GET"))[1]["url"] == URL

    with_queue(scenario)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": ""},
        {"url": 5},
        {"url": "ftp://x/"},
        {"url": "http://user:password@x/"},
        {"url": URL, "secret": ""},
        {"url": URL, "concurrency": 0},
        {"url": URL, "rate": -1},
        {"url": URL, "timeout": "soon"},
        {"url": URL, "timeout": "1h"},
        {"url": URL, "speed": 3},
    ],
)
def test_an_invalid_webhook_is_rejected(body: Any) -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        status, response = await ask(cluster, "PUT", body)
        assert status == 422
        assert response.keys() == {"code", "message", "next"}
        assert (await ask(cluster, "GET"))[0] == 404

    with_queue(scenario)


def test_setting_a_webhook_requires_permission_to_manage_the_topic() -> None:
    routes = WebhookRoutes(None, no_status).routes()  # type: ignore[arg-type]
    assert {route.method: route.access.verb for route in routes} == {
        "PUT": Verb.MANAGE,
        "GET": Verb.READ,
        "DELETE": Verb.MANAGE,
    }
    assert {route.access.subject for route in routes} == {AccessSubject.SUBSCRIPTION}
