"""Protect a server without authentication from requests of malicious web pages.

A browser sends requests on behalf of any page that it displays. These headers distinguish them from legitimate ones:

- `Host` is the host name in the URL of the request. With DNS rebinding, a malicious page resolves its own name to this
  server, and the browser considers its requests same-origin; but their `Host` is a name that is not configured. IP
  addresses, `localhost` and its subdomains (`a.localhost`) are accepted, because browsers do not resolve them by DNS.
  Any value that is not exactly a name or an address with an optional port is rejected, so that a malformed value cannot
  be parsed as an accepted name.
- `Sec-Fetch-Site`, else `Origin`, else `Referer` identify the site that caused the request. A GET request may lease
  messages, so links and frames on other sites must not reach it.

Browsers omit `Sec-Fetch-Site` in plain HTTP requests to other hosts than localhost, and may omit the other two headers.
A request with a browser's `User-Agent` and `Accept-Language` but none of the three headers counts as cross-site.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable

from headrace.http.message import Request
from headrace.http.problems import Problem

_HARMLESS_PATHS = frozenset(("/docs", "/openapi.json"))
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s\[\]:@/\\?#,]+)(?::[0-9]*)?", re.IGNORECASE)
_SAME_SITE = ("same-origin", "none")  # none: the user typed the address


class BrowserGuard:
    def __init__(self, hosts: Iterable[str]) -> None:
        """`hosts` are the names, without ports, that clients use for this server."""
        self._hosts = frozenset(map(_normalized, hosts))

    def check(self, request: Request) -> None:
        """Raise `Problem` 403 unless the request is acceptable."""
        if request.path in _HARMLESS_PATHS and request.method in ("GET", "HEAD"):
            return
        host = request.headers.get("host")
        if host and not self._is_known(name := _name_of(host)):
            option = f"start the server with --http-host {name[:100]}, " if name else ""
            raise Problem(
                403,
                "host_not_allowed",
                f"{host[:100]!r} is not a configured host name of this server, which runs without authentication",
                f"use an IP address or localhost, {option}or start the server with --auth",
            )
        if _is_cross_site(request):
            raise Problem(
                403,
                "cross_origin",
                "the request came from a web page of another origin, and this server runs without authentication",
                "start the server with --auth, or send the request from a client that is not a browser",
            )

    def _is_known(self, name: str) -> bool:
        return name in self._hosts or name == "localhost" or name.endswith(".localhost") or _is_ip_address(name)


def _is_cross_site(request: Request) -> bool:
    headers = request.headers
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in _SAME_SITE
    source = headers.get("origin") or headers.get("referer")
    if source is not None:
        return source.partition("://")[2].partition("/")[0] != headers.get("host")
    return "accept-language" in headers and headers.get("user-agent", "").startswith("Mozilla/")


def _name_of(host: str) -> str:
    """Return the value of `Host` without its port, or an empty string if it violates RFC 9110."""
    found = _HOST.fullmatch(host)
    return "" if found is None else _normalized(found[1])


def _normalized(name: str) -> str:
    return name.lower().removeprefix("[").removesuffix("]").removesuffix(".")


def _is_ip_address(name: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, name)
        except OSError:
            continue
        return True
    return False
