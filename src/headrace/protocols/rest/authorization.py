"""Authenticate and authorize REST requests: bearer tokens, their scopes and their rates.

- The application calls `authenticate` to authenticate a request (401, or 429 above its rate), then `require` of the
  caller for the operation of its route (403).
- A handler that accesses another topic than that of its route must also call `request.caller.require` for it.
- Responses and log lines never contain any part of a token except its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple, NoReturn, Protocol

import msgspec

from headrace.client.admin.tokens import TokenGrant, check_tokens
from headrace.client.cluster import Cluster
from headrace.http.message import Header, Request
from headrace.http.problems import Problem
from headrace.http.routes import Verb
from headrace.machines.queues.rate_limiter import RateLimiter
from headrace.model.errors import HeadraceError
from headrace.model.tokens import MANAGE, Scope, hash_secret, needed_scope, parse_token
from headrace.runtime.clock import Clock

# A revoked token is rejected within 5 s: brokers learn of the revocation within the remaining time.
VALID_CACHE_SECONDS = 4.0
INVALID_CACHE_SECONDS = 1.0
CACHED_MAX = 10_000
WAITING_MAX = 1_000
TOKENS_PER_REQUEST_MAX = 100
_DEADLINE_SECONDS = 3.0  # enough to retry with another broker when one fails

_Key = tuple[str, bytes]


class _CachedGrant(NamedTuple):
    grant: TokenGrant | None
    until: float


class TokenCache:
    """Verifies tokens with the brokers, and caches the results for a short time.

    - A valid token is cached for `VALID_CACHE_SECONDS` and an invalid one for `INVALID_CACHE_SECONDS`, counted from the
      start of the request to a broker. Therefore a revoked token stops working after a few seconds.
    - At most one request to the brokers is in flight; it verifies all tokens that have arrived since the previous one.
      Therefore many clients, or a client that makes up tokens, cause only few requests.
    - When too many tokens are waiting, further requests fail with 503.
    - Secrets are neither stored nor sent; the cache uses their hashes.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._valid_grants: dict[_Key, _CachedGrant] = {}
        self._invalid_tokens: dict[_Key, _CachedGrant] = {}
        self._pending_checks: dict[_Key, list[asyncio.Future[TokenGrant | None]]] = {}
        self._checking: asyncio.Task[None] | None = None

    async def check(self, token_id: str, secret: str) -> TokenGrant | None:
        """Return the grant of a token, or None if it is invalid; raise if no broker can verify it."""
        key = (token_id, hash_secret(secret))
        known = self._valid_grants.get(key) or self._invalid_tokens.get(key)
        if known is not None and self._clock.monotonic() < known.until:
            return known.grant
        return await self._pending_check(key)

    def _pending_check(self, key: _Key) -> asyncio.Future[TokenGrant | None]:
        if key not in self._pending_checks and len(self._pending_checks) >= WAITING_MAX:
            raise Problem(
                503,
                "busy",
                f"{WAITING_MAX} other tokens are waiting for verification",
                "retry after the time in Retry-After",
                [("retry-after", "1")],
            )
        loop = asyncio.get_running_loop()
        grant: asyncio.Future[TokenGrant | None] = loop.create_future()
        self._pending_checks.setdefault(key, []).append(grant)
        if self._checking is None:
            self._checking = loop.create_task(self._check_all_pending())
        return grant

    async def _check_all_pending(self) -> None:
        try:
            while self._pending_checks:
                await self._check_pending([*self._pending_checks][:TOKENS_PER_REQUEST_MAX])
        finally:
            self._checking = None

    async def _check_pending(self, keys: list[_Key]) -> None:
        requested_at = self._clock.monotonic()
        try:
            grants = await self._cluster.call_with_retries(
                lambda: check_tokens(self._cluster, keys), deadline_seconds=_DEADLINE_SECONDS
            )
        except HeadraceError as error:
            for key in keys:
                for waiting in self._pending_checks.pop(key):
                    if not waiting.done():
                        waiting.set_exception(error)
            return
        for key, grant in zip(keys, grants, strict=True):
            self._remember(key, grant, requested_at)
            for waiting in self._pending_checks.pop(key):
                if not waiting.done():
                    waiting.set_result(grant)

    def _remember(self, key: _Key, grant: TokenGrant | None, requested_at: float) -> None:
        """Cache a result. The oldest entry is evicted first; invalid tokens cannot evict valid ones."""
        self._valid_grants.pop(key, None)
        self._invalid_tokens.pop(key, None)
        seconds, kept = VALID_CACHE_SECONDS, self._valid_grants
        if grant is None:
            seconds, kept = INVALID_CACHE_SECONDS, self._invalid_tokens
        if len(kept) >= CACHED_MAX:
            del kept[next(iter(kept))]
        kept[key] = _CachedGrant(grant, requested_at + seconds)


RATES_MAX = 10_000
_UNAUTHORIZED = 401
_CHALLENGE = 'Bearer realm="headrace"'
_TOKEN_HINT = "send `Authorization: Bearer TOKEN`; create a token with `headrace token create`"


class Principal(msgspec.Struct, frozen=True):
    """The sender of a request. `token_id` is empty if the server requires no token."""

    name: str
    token_id: str
    scopes: Sequence[Scope]

    def may(self, verb: Verb, topic: str | None) -> bool:
        return verb is Verb.PUBLIC or any(scope.allows(verb.value, topic) for scope in self.scopes)

    def require(self, verb: Verb, topic: str | None) -> None:
        """Raise `Problem` 403 with the missing scope unless the operation is permitted. `topic` is None for operations
        that concern no topic."""
        if not self.may(verb, topic):
            missing = needed_scope(verb.value, topic)
            raise Problem(
                403,
                "scope_missing",
                f"token {self.token_id} ({self.name}) lacks the scope {missing}",
                f"use a token with that scope; create one with `headrace token create NAME --scope {missing}`",
                [("www-authenticate", f'{_CHALLENGE}, error="insufficient_scope"')],
            )


ANONYMOUS = Principal("anybody", "", (Scope(MANAGE, "*"),))


class Authorizer(Protocol):
    async def authenticate(self, request: Request) -> Principal:
        """Return the sender, or raise `Problem` 401 or 429. A request that already has a caller is checked again, but
        not counted against the rate limit again."""

    async def is_still_authorized(self, request: Request) -> bool:
        """Whether a request that is still in progress would still be authenticated now."""


class AllowAllAuthorizer:
    """Permits everything; tokens are ignored."""

    async def authenticate(self, request: Request) -> Principal:  # noqa: ARG002
        return ANONYMOUS

    async def is_still_authorized(self, request: Request) -> bool:  # noqa: ARG002
        return True


class TokenAuthorizer:
    """Requires a token, and enforces its scopes and its rate limit."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._clock = clock
        self._checks = TokenCache(cluster)
        self._rates: dict[str, RateLimiter] = {}

    async def authenticate(self, request: Request) -> Principal:
        grant = await self._grant_of(request)
        if request.caller is None:
            self._count(grant)
        return Principal(grant.name, grant.id, grant.scopes)

    async def is_still_authorized(self, request: Request) -> bool:
        try:
            await self._grant_of(request)
        except Problem as problem:
            return problem.status != _UNAUTHORIZED
        except HeadraceError:
            pass  # no broker can verify the token now; assume that it is still valid
        return True

    async def _grant_of(self, request: Request) -> TokenGrant:
        token_id, secret = _presented_token(request)
        grant = await self._checks.check(token_id, secret)
        if grant is None:
            _raise_unauthorized(
                "token_unknown", f"token {token_id} does not exist or has another secret; it may have been revoked"
            )
        if grant.expires_ms is not None and self._clock.now_ms() >= grant.expires_ms:
            _raise_unauthorized("token_expired", f"token {token_id} ({grant.name}) has expired")
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

    def _rate_of(self, grant: TokenGrant) -> RateLimiter:
        """Return the rate of a token. Only recently used ones are kept: an idle token has its full burst anyway."""
        rate = self._rates.pop(grant.id, None) or RateLimiter()
        rate.per_second = grant.requests_per_second
        if len(self._rates) >= RATES_MAX:
            del self._rates[next(iter(self._rates))]
        self._rates[grant.id] = rate
        return rate


def _presented_token(request: Request) -> tuple[str, str]:
    """Return the id and the secret of the token in the request."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if not scheme:
        _raise_unauthorized("token_missing", "this server requires an access token", is_invalid=False)
    if scheme.lower() != "bearer":
        _raise_unauthorized("token_missing", "this server requires a bearer token", is_invalid=False)
    found = parse_token(text.strip())
    if found is None:
        _raise_unauthorized(
            "token_malformed", "the bearer token is malformed; Headrace tokens have the form hr_ID_SECRET"
        )
    return found


def _raise_unauthorized(code: str, message: str, *, is_invalid: bool = True) -> NoReturn:
    challenge = f'{_CHALLENGE}, error="invalid_token"' if is_invalid else _CHALLENGE
    headers: Sequence[Header] = [("www-authenticate", challenge)]
    raise Problem(_UNAUTHORIZED, code, message, _TOKEN_HINT, headers)
