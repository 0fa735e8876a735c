"""Authentication, authorization and rate limits with bearer tokens.

The application calls `identify` to authenticate a request (401, or 429 above its rate), then `authorize` for the
operation of its route (403). A handler that accesses another topic than that of its route must also authorize it with
`request.caller`. Responses and log lines never contain any part of a token except its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NoReturn, Protocol

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.tokens import TokenGrant
from headrace.doors.rest.token_checks import TokenChecks
from headrace.http.message import Header, Request
from headrace.http.problem import Problem
from headrace.http.routes import Verb
from headrace.machines.rate import Rate
from headrace.model.errors import HeadraceError
from headrace.model.tokens import MANAGE, Scope, needed_scope, parse_token
from headrace.runtime.clock import Clock

RATES_MAX = 10_000
_UNAUTHORIZED = 401
_CHALLENGE = 'Bearer realm="headrace"'
_HOW_TO_GET_ONE = "send `Authorization: Bearer TOKEN`; create a token with `headrace token create`"


class Caller(msgspec.Struct, frozen=True):
    """The sender of a request. `token_id` is empty if the server requires no token."""

    name: str
    token_id: str
    scopes: Sequence[Scope]

    def may(self, verb: Verb, topic: str | None) -> bool:
        return verb is Verb.PUBLIC or any(scope.allows(verb.value, topic) for scope in self.scopes)

    def require(self, verb: Verb, topic: str | None) -> None:
        """Raise `Problem` 403 with the missing scope unless the operation is permitted."""
        if not self.may(verb, topic):
            missing = needed_scope(verb.value, topic)
            raise Problem(
                403,
                "scope_missing",
                f"token {self.token_id} ({self.name}) lacks the scope {missing}",
                f"use a token with that scope; create one with `headrace token create NAME --scope {missing}`",
                [("www-authenticate", f'{_CHALLENGE}, error="insufficient_scope"')],
            )


ANYBODY = Caller("anybody", "", (Scope(MANAGE, "*"),))


class Gatekeeper(Protocol):
    async def identify(self, request: Request) -> Caller:
        """Return the sender, or raise `Problem` 401 or 429. A request that already has a caller is checked again, but
        not counted against the rate limit again."""

    def authorize(self, caller: Caller, verb: Verb, topic: str | None) -> None:
        """Raise `Problem` 403 unless permitted. `topic` is None for operations that concern no topic."""

    async def is_still_welcome(self, request: Request) -> bool:
        """Whether a request that is still being answered would still be authenticated now."""


class OpenGatekeeper:
    """Permits everything; tokens are ignored."""

    async def identify(self, request: Request) -> Caller:  # noqa: ARG002
        return ANYBODY

    def authorize(self, caller: Caller, verb: Verb, topic: str | None) -> None:
        caller.require(verb, topic)

    async def is_still_welcome(self, request: Request) -> bool:  # noqa: ARG002
        return True


class TokenGatekeeper:
    """Requires a token, and enforces its scopes and its rate limit."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._clock = clock
        self._checks = TokenChecks(cluster)
        self._rates: dict[str, Rate] = {}

    async def identify(self, request: Request) -> Caller:
        grant = await self._checked(request)
        if request.caller is None:
            self._count(grant)
        return Caller(grant.name, grant.id, grant.scopes)

    def authorize(self, caller: Caller, verb: Verb, topic: str | None) -> None:
        caller.require(verb, topic)

    async def is_still_welcome(self, request: Request) -> bool:
        try:
            await self._checked(request)
        except Problem as problem:
            return problem.status != _UNAUTHORIZED
        except HeadraceError:
            pass  # no broker can verify the token now; assume that it is still valid
        return True

    async def _checked(self, request: Request) -> TokenGrant:
        token_id, secret = _presented(request)
        grant = await self._checks.check(token_id, secret)
        if grant is None:
            _refuse("token_unknown", f"token {token_id} does not exist or has another secret; it may have been revoked")
        if grant.expires_ms is not None and self._clock.now_ms() >= grant.expires_ms:
            _refuse("token_expired", f"token {token_id} ({grant.name}) has expired")
        return grant

    def _count(self, grant: TokenGrant) -> None:
        if grant.requests_per_second is None:
            return
        rate, now = self._rate_of(grant), self._clock.monotonic()
        wait_seconds = rate.wait_seconds(now, grant.burst)
        if wait_seconds > 0:
            seconds = str(ceil(wait_seconds))
            raise Problem(
                429,
                "rate_limited",
                f"token {grant.id} ({grant.name}) is limited to {grant.requests_per_second} requests per second "
                f"with bursts of {grant.burst}",
                f"retry after {seconds} s; a request can contain several messages",
                [("retry-after", seconds)],
            )
        rate.take(1, now)

    def _rate_of(self, grant: TokenGrant) -> Rate:
        """Return the rate of a token. Only recently used ones are kept: an idle token has its full burst anyway."""
        rate = self._rates.pop(grant.id, None) or Rate()
        rate.per_second = grant.requests_per_second
        if len(self._rates) >= RATES_MAX:
            del self._rates[next(iter(self._rates))]
        self._rates[grant.id] = rate
        return rate


def _presented(request: Request) -> tuple[str, str]:
    """Return the id and the secret of the token in the request."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if not scheme:
        _refuse("token_missing", "this server requires an access token", is_invalid=False)
    if scheme.lower() != "bearer":
        _refuse("token_missing", "this server requires a bearer token", is_invalid=False)
    found = parse_token(text.strip())
    if found is None:
        _refuse("token_malformed", "the bearer token is malformed; Headrace tokens have the form hr_ID_SECRET")
    return found


def _refuse(code: str, message: str, *, is_invalid: bool = True) -> NoReturn:
    challenge = f'{_CHALLENGE}, error="invalid_token"' if is_invalid else _CHALLENGE
    headers: Sequence[Header] = [("www-authenticate", challenge)]
    raise Problem(_UNAUTHORIZED, code, message, _HOW_TO_GET_ONE, headers)
