"""The HTTP server of a process: health from the start, the application when it is ready and first requested."""

from __future__ import annotations

import pytest
from tests.unit.http.http_harness import HttpHarness, HttpTestClient, ScriptedApplication

from headrace.http.message import Request
from headrace.http.problems import Problem
from headrace.protocols.health.pages import HealthPages
from headrace.server.browser_guard import BrowserGuard
from headrace.server.http_server import LazyApplication


class Source:
    async def page(self) -> bytes:
        return b"up 1\n"

    def checks(self) -> dict[str, str | None]:
        return {}


class Rest(ScriptedApplication):
    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    async def admit_metrics(self, _request: Request) -> None:
        raise Problem(401, "token_missing", "this server wants a token", "send one")

    async def close(self) -> None:
        self.is_closed = True


class FrontEnd:
    """A `LazyApplication` that records when its application is built."""

    def __init__(self, *, has_guard: bool = True, guards_metrics: bool = False) -> None:
        self.built: list[Rest] = []
        self.health = HealthPages(Source())
        self.front = LazyApplication(
            self.health, self._build, BrowserGuard(["x"]) if has_guard else None, guards_metrics=guards_metrics
        )

    def http_client(self) -> HttpTestClient:
        harness = HttpHarness()
        harness.listener.application = self.front
        return harness.http_client()

    def _build(self) -> Rest:
        self.built.append(Rest())
        return self.built[-1]


@pytest.fixture
def front_end() -> FrontEnd:
    return FrontEnd()


async def test_metrics_require_permission_and_health_does_not() -> None:
    front_end = FrontEnd(has_guard=False, guards_metrics=True)
    http_client = front_end.http_client().asks("/metrics")
    front_end.health.is_ready = True
    http_client.asks("/metrics").asks("/livez").asks("/readyz")
    assert [response.status for response in http_client.answers()] == [503, 401, 200, 200]


async def test_the_application_is_built_once_on_the_first_request(front_end: FrontEnd) -> None:
    front_end.health.is_ready = True
    http_client = front_end.http_client().asks("/livez").asks("/metrics").asks("/readyz")
    assert front_end.built == []
    http_client.asks("/topics", "POST", body=b"abc").asks("/topics")
    assert len(front_end.built) == 1
    assert [response.status for response in http_client.answers()] == [200] * 5


async def test_only_health_is_served_before_the_server_is_ready(front_end: FrontEnd) -> None:
    http_client = front_end.http_client().asks("/livez").asks("/topics").asks("/topics", "POST", body=b"x" * 2000)
    alive, *refused = http_client.answers()
    assert alive.status == 200
    assert [(response.status, response.code, response.headers["retry-after"]) for response in refused] == [
        (503, "not_ready", "1")
    ] * 2
    assert front_end.built == []
    front_end.health.is_ready = True
    assert http_client.asks("/topics").answers()[-1].status == 200


async def test_the_application_limits_the_size_of_bodies(front_end: FrontEnd) -> None:
    front_end.health.is_ready = True
    assert front_end.http_client().asks("/topics", "POST", body=b"x" * 1001).answer().status == 413


async def test_a_built_application_is_closed(front_end: FrontEnd) -> None:
    await front_end.front.close()
    front_end.health.is_ready = True
    front_end.http_client().asks("/topics")
    await front_end.front.close()
    assert front_end.built[0].is_closed


async def test_with_tokens_requests_of_web_pages_are_not_checked() -> None:
    front_end = FrontEnd(has_guard=False)
    front_end.health.is_ready = True
    response = (
        front_end.http_client().sends("GET /topics HTTP/1.1\r\nHost: evil\r\nOrigin: http://worse\r\n\r\n").answer()
    )
    assert response.status == 200


async def test_web_pages_can_read_health_but_not_metrics(front_end: FrontEnd) -> None:
    front_end.health.is_ready = True
    rebound = "Host: rebind.evil.example\r\nSec-Fetch-Site: cross-site\r\n"
    for path, status in (("/livez", 200), ("/readyz", 200), ("/metrics", 403), ("/topics", 403)):
        assert front_end.http_client().sends(f"GET {path} HTTP/1.1\r\n{rebound}\r\n").answer().status == status


async def test_the_host_of_an_absolute_url_takes_precedence_over_the_header(front_end: FrontEnd) -> None:
    front_end.health.is_ready = True
    rebound = front_end.http_client().sends(
        "POST http://evil/topics HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert rebound.answer().code == "host_not_allowed"
    assert front_end.http_client().sends("GET http://x/topics HTTP/1.1\r\nHost: evil\r\n\r\n").answer().status == 200


@pytest.mark.parametrize("target", ["http:///topics", "http://?/topics", "http://#/topics", "http://"])
async def test_an_absolute_url_without_a_host_does_not_hide_the_header(front_end: FrontEnd, target: str) -> None:
    front_end.health.is_ready = True
    response = front_end.http_client().sends(f"GET {target} HTTP/1.1\r\nHost: rebind.evil.example\r\n\r\n").answer()
    assert (response.status, response.code) == (400, "malformed_request")
    assert front_end.built == []


async def test_a_cross_site_form_publishes_nothing(front_end: FrontEnd) -> None:
    front_end.health.is_ready = True
    headers = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"
    response = front_end.http_client().asks("/topics/a/messages", "POST", headers, b"x").answer()
    assert (response.status, response.code) == (403, "cross_origin")
    assert front_end.built[0].requests == []


async def test_a_cross_site_frame_leases_nothing(front_end: FrontEnd) -> None:
    front_end.health.is_ready = True
    headers = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n"
    response = front_end.http_client().asks("/subscriptions/s/messages?lease=12h", headers=headers).answer()
    assert (response.status, response.code) == (403, "cross_origin")
    assert front_end.built == []
