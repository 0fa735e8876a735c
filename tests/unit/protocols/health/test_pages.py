"""The health pages: content, methods, and failures."""

from __future__ import annotations

import pytest
from tests.unit.http.http_harness import HttpHarness, HttpTestClient, ParsedResponse

from headrace.protocols.health.pages import PATHS, HealthPages


class Source:
    def __init__(self) -> None:
        self.wrong: str | None = None

    async def page(self) -> bytes:
        if self.wrong == "bug":
            raise ZeroDivisionError
        return b"up 1\n"

    def checks(self) -> dict[str, str | None]:
        return {"disk": self.wrong}


def visitor_of(pages: HealthPages) -> HttpTestClient:
    simulated_broker = HttpHarness()
    simulated_broker.listener.application = pages
    return simulated_broker.http_client()


def page(pages: HealthPages, path: str, method: str = "GET", body: bytes = b"") -> ParsedResponse:
    return visitor_of(pages).asks(path, method, body=body).answer(method)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def pages(source: Source) -> HealthPages:
    pages = HealthPages(source)
    pages.is_ready = True
    return pages


async def test_the_content_of_the_pages(pages: HealthPages) -> None:
    assert page(pages, "/livez").body == b"ok\n"
    metrics = page(pages, "/metrics")
    assert (metrics.status, metrics.body) == (200, b"up 1\n")
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert metrics.headers["cache-control"] == "no-store"
    assert page(pages, "/readyz?verbose=1")[::2] == (200, b"[+] serving\n[+] disk\n")


async def test_readyz_lists_failed_checks(pages: HealthPages, source: Source) -> None:
    pages.is_ready = False
    ready = page(pages, "/readyz")
    assert ready.status == 503
    assert ready.body == b"[-] serving: the process is starting or stopping\n[+] disk\n"
    assert page(pages, "/livez").status == 200
    pages.is_ready = True
    source.wrong = "nearly full"
    assert page(pages, "/healthz")[::2] == (503, b"[+] serving\n[-] disk: nearly full\n")


@pytest.mark.parametrize("path", sorted(PATHS))
async def test_only_get_and_head_are_served(pages: HealthPages, path: str) -> None:
    assert page(pages, path, "HEAD").status == 200
    for method in ("POST", "PUT", "DELETE"):
        response = page(pages, path, method)
        assert (response.status, response.code, response.headers["allow"]) == (405, "method_not_allowed", "GET")
    assert page(pages, path, "POST", body=b"x").status == 413


async def test_a_failing_page_is_a_500(pages: HealthPages, source: Source) -> None:
    source.wrong = "bug"
    http_client = visitor_of(pages).asks("/metrics").asks("/livez")
    assert [response.status for response in http_client.answers()] == [500, 200]
