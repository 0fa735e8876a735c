"""Who calls, and whether they may: bearer tokens, their scopes and their rates.

A door asks `identify` who sends a request (401, or 429 when they send too many), then `authorize` whether they may do
what its route says (403). A handler that touches another topic than the one its route names asks `request.caller` about
that one, too. No answer and no line of the log ever holds a token, or more of it than its id.
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
_HOW_TO_GET_ONE = "send `Authorization: Bearer TOKEN`; `headrace token create` makes one"


class Caller(msgspec.Struct, frozen=True):
    """`token_id` is empty for one who needs no token."""

    name: str
    token_id: str
    scopes: Sequence[Scope]

    def may(self, verb: Verb, topic: str | None) -> bool:
        return verb is Verb.PUBLIC or any(scope.allows(verb.value, topic) for scope in self.scopes)

    def require(self, verb: Verb, topic: str | None) -> None:
        """Raises `Problem` 403, which names the scope that is missing."""
        if not self.may(verb, topic):
            missing = needed_scope(verb.value, topic)
            raise Problem(
                403,
                "scope_missing",
                f"token {self.token_id} ({self.name}) lacks the scope {missing}",
                f"use a token that has it; `headrace token create NAME --scope {missing}` makes one",
                [("www-authenticate", f'{_CHALLENGE}, error="insufficient_scope"')],
            )


ANYBODY = Caller("anybody", "", (Scope(MANAGE, "*"),))


class Gatekeeper(Protocol):
    async def identify(self, request: Request) -> Caller:
        """Who sends it; raises `Problem` 401 or 429. A request that has a caller already is checked again, but not
        counted against its rate again."""

    def authorize(self, caller: Caller, verb: Verb, topic: str | None) -> None:
        """`topic` None: what is asked for belongs to no topic. Raises `Problem` 403."""

    async def is_still_welcome(self, request: Request) -> bool:
        """Whether one who was let in with this request, and is still being answered, would be let in now."""


class OpenGatekeeper:
    """Everybody may everything; tokens are not looked at."""

    async def identify(self, request: Request) -> Caller:  # noqa: ARG002
        return ANYBODY

    def authorize(self, caller: Caller, verb: Verb, topic: str | None) -> None:
        caller.require(verb, topic)

    async def is_still_welcome(self, request: Request) -> bool:  # noqa: ARG002
        return True


class TokenGatekeeper:
    """Only who has a token, and only what its scopes say, and not more often than its rate."""

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
            pass  # no broker can tell now, and there is no reason to think so
        return True

    async def _checked(self, request: Request) -> TokenGrant:
        token_id, secret = _presented(request)
        grant = await self._checks.check(token_id, secret)
        if grant is None:
            _refuse("token_unknown", f"there is no token {token_id} with this secret; it may have been revoked")
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
                f"token {grant.id} ({grant.name}) may send {grant.requests_per_second} requests per second, "
                f"and {grant.burst} at once",
                f"try again in {seconds} s; several messages fit into one request",
                [("retry-after", seconds)],
            )
        rate.take(1, now)

    def _rate_of(self, grant: TokenGrant) -> Rate:
        """Those in use last are kept: who has paused for long has nothing to pay for."""
        rate = self._rates.pop(grant.id, None) or Rate()
        rate.per_second = grant.requests_per_second
        if len(self._rates) >= RATES_MAX:
            del self._rates[next(iter(self._rates))]
        self._rates[grant.id] = rate
        return rate


def _presented(request: Request) -> tuple[str, str]:
    """The id and the secret of the token that the request carries."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if not scheme:
        _refuse("token_missing", "this server wants a token", is_invalid=False)
    if scheme.lower() != "bearer":
        _refuse("token_missing", "this server wants a bearer token", is_invalid=False)
    found = parse_token(text.strip())
    if found is None:
        _refuse("token_malformed", "the bearer token is not one of ours, which look like hr_ID_SECRET")
    return found


def _refuse(code: str, message: str, *, is_invalid: bool = True) -> NoReturn:
    challenge = f'{_CHALLENGE}, error="invalid_token"' if is_invalid else _CHALLENGE
    headers: Sequence[Header] = [("www-authenticate", challenge)]
    raise Problem(_UNAUTHORIZED, code, message, _HOW_TO_GET_ONE, headers)
