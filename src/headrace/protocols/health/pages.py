"""Health and metrics pages: `/livez`, `/readyz` (also `/healthz`) and `/metrics`. GET and HEAD only.

Health pages need no token. The server checks the token for `/metrics` before it passes the request on, if it has to.

`/livez` only shows that the event loop responds. `/readyz` lists the checks that must pass before requests are served.
"""

from __future__ import annotations

from typing import Protocol

from headrace.http.message import Request, Response
from headrace.http.problems import Problem

HEALTH_PATHS = frozenset(("/livez", "/readyz", "/healthz"))
PATHS = HEALTH_PATHS | {"/metrics"}

_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_FRESH = (("cache-control", "no-store"),)


class HealthSource(Protocol):
    """Provides the content of the pages."""

    async def page(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        ...

    def checks(self) -> dict[str, str | None]:
        """Return the readiness checks by name, with the reason of each failure, or None if the check passed."""
        ...


class HealthPages:
    def __init__(self, source: HealthSource) -> None:
        self.is_ready = False
        self._source = source

    def body_limit(self, _method: str, _path: str) -> int:
        return 0

    async def admit(self, request: Request) -> None:
        """Admit every request that the server passes on."""

    async def handle(self, request: Request) -> Response:
        """Respond to a request for one of `PATHS`."""
        if request.method not in ("GET", "HEAD"):
            raise Problem(
                405, "method_not_allowed", f"{request.method} is not supported here", "use GET", [("allow", "GET")]
            )
        if request.path == "/livez":
            return _text_response(b"ok\n")
        if request.path == "/metrics":
            return _text_response(await self._source.page(), _METRICS)
        return self._ready()

    def _ready(self) -> Response:
        checks = {
            "serving": None if self.is_ready else "the process is starting or stopping",
            **self._source.checks(),
        }
        lines = [f"[{'-' if wrong else '+'}] {name}{f': {wrong}' if wrong else ''}\n" for name, wrong in checks.items()]
        return _text_response("".join(lines).encode(), status=503 if any(checks.values()) else 200)


def _text_response(text: bytes, content_type: str = _TEXT, status: int = 200) -> Response:
    return Response(status, text, content_type, _FRESH)
