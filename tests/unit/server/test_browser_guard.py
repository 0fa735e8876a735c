"""Which requests a server without tokens takes for those of web pages: by the name they use, and by their site."""

from __future__ import annotations

import pytest

from headrace.http.message import Request
from headrace.http.problems import Problem
from headrace.server.browser_guard import BrowserGuard

FIREFOX = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Firefox/140.0", "accept-language": "en"}
POWERSHELL = {"user-agent": "Mozilla/5.0 (Linux; Ubuntu 24.04; en-US) PowerShell/7.5.0"}
NODE = {"user-agent": "node", "accept-language": "*", "sec-fetch-mode": "cors"}


def code(path: str = "/topics", method: str = "GET", **headers: str) -> str | None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = Request(method, path, {}, named, b"", "127.0.0.1", "r1")
    try:
        BrowserGuard(["Broker.example", "::1"]).check(request)
    except Problem as problem:
        return f"{problem.status} {problem.code}"
    return None


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8080",
        "localhost",
        "LOCALHOST:8080",
        "a.localhost:1",
        "[::1]:8080",
        "10.0.0.5:8080",
        "broker.example",
        "BROKER.example.:8080",
        "[2001:db8::1]",
        "127.0.0.1:",
        "",
    ],
)
def test_loopback_addresses_and_configured_names_are_served(host: str) -> None:
    assert code(host=host) is None


@pytest.mark.parametrize(
    "host",
    ["rebind.evil.example", "rebind.evil.example:8080", "localhost.evil.example", "127.0.0.1.evil", "x"],
)
def test_a_name_that_nobody_configured_is_refused_and_the_error_names_the_setting(host: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        assert code(method=method, host=host) == "403 host_not_allowed"
    with pytest.raises(Problem) as refused:
        BrowserGuard([]).check(Request("GET", "/topics", {}, {"host": host}, b"", "", ""))
    assert f"--http-host {host.partition(':')[0]}" in refused.value.next_step


@pytest.mark.parametrize(
    "host",
    [
        "[::1].evil.example",
        "[::1]evil.example:8080",
        "[::1]:80.evil.example",
        "127.0.0.1:80@evil.example",
        "127.0.0.1@evil.example",
        "localhost:80.evil.example",
        "localhost:80/evil.example",
        "evil.example/.localhost",
        "evil.example#.localhost",
        "evil.example .localhost",
        "[localhost]",
        "[::1",
        "::1",
        ":8080",
    ],
)
def test_a_host_that_is_not_exactly_a_name_and_a_port_is_refused(host: str) -> None:
    assert code(host=host) == "403 host_not_allowed"


def test_a_request_without_a_host_is_not_a_browser_s() -> None:
    assert code() is None


@pytest.mark.parametrize(
    ("headers", "is_served"),
    [
        ({}, True),
        ({"origin": "http://localhost"}, True),
        ({"origin": "https://localhost"}, True),
        ({"origin": "http://evil"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://proxied", "sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
        ({"referer": "http://localhost/docs", **FIREFOX}, True),
        ({"referer": "http://evil/", **FIREFOX}, False),
        (FIREFOX, False),
        (POWERSHELL, True),
        (NODE, True),
    ],
)
def test_what_a_page_of_another_site_caused_is_refused(headers: dict[str, str], is_served: bool) -> None:
    assert code(host="localhost", **headers) == (None if is_served else "403 cross_origin")


def test_the_description_of_the_api_may_be_linked_to() -> None:
    for path in ("/docs", "/openapi.json"):
        assert code(path, host="evil", sec_fetch_site="cross-site") is None
        assert code(path, "POST", host="localhost", sec_fetch_site="cross-site") == "403 cross_origin"
