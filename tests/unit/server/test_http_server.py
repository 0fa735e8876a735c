"""What a process serves by HTTP: its health always, the rest when it is ready, built when it is first asked for."""

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


class Entrance:
    """A front door whose application notes when it is built."""

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
def entrance() -> Entrance:
    return Entrance()


async def test_metrics_are_served_to_who_may_read_them_and_health_to_everybody() -> None:
    entrance = Entrance(has_guard=False, guards_metrics=True)
    http_client = entrance.http_client().asks("/metrics")
    entrance.health.is_ready = True
    http_client.asks("/metrics").asks("/livez").asks("/readyz")
    assert [told.status for told in http_client.answers()] == [503, 401, 200, 200]


async def test_the_application_is_built_once_when_it_is_first_asked_for(entrance: Entrance) -> None:
    entrance.health.is_ready = True
    http_client = entrance.http_client().asks("/livez").asks("/metrics").asks("/readyz")
    assert entrance.built == []
    http_client.asks("/topics", "POST", body=b"abc").asks("/topics")
    assert len(entrance.built) == 1
    assert [told.status for told in http_client.answers()] == [200] * 5


async def test_before_it_is_ready_only_its_health_is_served(entrance: Entrance) -> None:
    http_client = entrance.http_client().asks("/livez").asks("/topics").asks("/topics", "POST", body=b"x" * 2000)
    alive, *refused = http_client.answers()
    assert alive.status == 200
    assert [(told.status, told.code, told.headers["retry-after"]) for told in refused] == [(503, "not_ready", "1")] * 2
    assert entrance.built == []
    entrance.health.is_ready = True
    assert http_client.asks("/topics").answers()[-1].status == 200


async def test_bodies_are_as_large_as_the_application_allows(entrance: Entrance) -> None:
    entrance.health.is_ready = True
    assert entrance.http_client().asks("/topics", "POST", body=b"x" * 1001).answer().status == 413


async def test_what_was_built_is_closed(entrance: Entrance) -> None:
    await entrance.front.close()
    entrance.health.is_ready = True
    entrance.http_client().asks("/topics")
    await entrance.front.close()
    assert entrance.built[0].is_closed


async def test_with_tokens_pages_of_others_are_not_looked_at() -> None:
    entrance = Entrance(has_guard=False)
    entrance.health.is_ready = True
    told = entrance.http_client().sends("GET /topics HTTP/1.1\r\nHost: evil\r\nOrigin: http://worse\r\n\r\n").answer()
    assert told.status == 200


async def test_health_is_told_to_every_page_and_metrics_are_not(entrance: Entrance) -> None:
    entrance.health.is_ready = True
    rebound = "Host: rebind.evil.example\r\nSec-Fetch-Site: cross-site\r\n"
    for path, status in (("/livez", 200), ("/readyz", 200), ("/metrics", 403), ("/topics", 403)):
        assert entrance.http_client().sends(f"GET {path} HTTP/1.1\r\n{rebound}\r\n").answer().status == status


async def test_the_host_of_a_whole_url_counts_and_not_the_header(entrance: Entrance) -> None:
    entrance.health.is_ready = True
    rebound = entrance.http_client().sends("POST http://evil/topics HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
    assert rebound.answer().code == "host_not_allowed"
    assert entrance.http_client().sends("GET http://x/topics HTTP/1.1\r\nHost: evil\r\n\r\n").answer().status == 200


@pytest.mark.parametrize("target", ["http:///topics", "http://?/topics", "http://#/topics", "http://"])
async def test_a_whole_url_without_a_host_does_not_hide_the_name_in_the_header(entrance: Entrance, target: str) -> None:
    entrance.health.is_ready = True
    told = entrance.http_client().sends(f"GET {target} HTTP/1.1\r\nHost: rebind.evil.example\r\n\r\n").answer()
    assert (told.status, told.code) == (400, "malformed_request")
    assert entrance.built == []


async def test_a_form_on_the_page_of_another_publishes_nothing(entrance: Entrance) -> None:
    entrance.health.is_ready = True
    headers = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"
    told = entrance.http_client().asks("/topics/a/messages", "POST", headers, b"x").answer()
    assert (told.status, told.code) == (403, "cross_origin")
    assert entrance.built[0].requests == []


async def test_a_frame_on_the_page_of_another_leases_nothing(entrance: Entrance) -> None:
    entrance.health.is_ready = True
    headers = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n"
    told = entrance.http_client().asks("/subscriptions/s/messages?lease=12h", headers=headers).answer()
    assert (told.status, told.code) == (403, "cross_origin")
    assert entrance.built == []
