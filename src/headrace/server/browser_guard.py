"""Keep web pages from using a server that asks for no token.

A browser sends requests for any page that it shows. These headers tell them from those of other clients:

- `Host` is the name that the page's address has. A page whose name was pointed at this server (DNS rebinding) counts as
  same-origin for the browser, but its requests carry a name that nobody configured. IP addresses, `localhost` and names
  below it (`a.localhost`) are accepted: browsers do not ask DNS for them, so they cannot be pointed anywhere. Anything
  that is not exactly a name or an address with an optional port is refused, so that no part of it is taken for the
  whole.
- `Sec-Fetch-Site`, else `Origin`, else `Referer` tell which site caused the request. A GET may lease messages, so a
  link or a frame on another site must not reach it.

Browsers leave `Sec-Fetch-Site` out for plain HTTP to other hosts than their own, and may leave out the other two. What
sends a browser's `User-Agent` and `Accept-Language` but none of the three is taken for another site.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable

from headrace.http.message import Request
from headrace.http.problem import Problem

_HARMLESS_PATHS = frozenset(("/docs", "/openapi.json"))
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s\[\]:@/\\?#,]+)(?::[0-9]*)?", re.IGNORECASE)
_SAME_SITE = ("same-origin", "none")  # none: the user typed the address


class BrowserGuard:
    def __init__(self, hosts: Iterable[str]) -> None:
        """`hosts`: the names, without a port, by which clients reach this server."""
        self._hosts = frozenset(map(_normalized, hosts))

    def check(self, request: Request) -> None:
        """Raises `Problem` 403."""
        if request.path in _HARMLESS_PATHS and request.method in ("GET", "HEAD"):
            return
        host = request.headers.get("host")
        if host and not self._is_known(name := _name_of(host)):
            option = f"start the server with --http-host {name[:100]}, " if name else ""
            raise Problem(
                403,
                "host_not_allowed",
                f"{host[:100]!r} is not a configured name of this server, which asks for no token",
                f"use an IP address or localhost, {option}or serve with --auth",
            )
        if _is_cross_site(request):
            raise Problem(
                403,
                "cross_origin",
                "a web page of another origin sent this, and no token is asked for here",
                "serve with --auth, or send it from elsewhere than a browser",
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
    """The value of `Host` without its port; empty if it is none that RFC 9110 allows."""
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
