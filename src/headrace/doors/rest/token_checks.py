"""Verify tokens with the brokers, and cache the results for a short time.

- A valid token is cached for `GOOD_SECONDS` and an invalid one for `BAD_SECONDS`, counted from the start of the request
  to a broker. Therefore a revoked token stops working after a few seconds.
- At most one request to the brokers is in flight; it verifies all tokens that have arrived since the previous one.
  Therefore many clients, or a client that makes up tokens, cause only few requests.
- When too many tokens are waiting, further requests fail with 503.
- Secrets are neither stored nor sent; the cache uses their hashes.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from headrace.client.cluster import Cluster
from headrace.client.tokens import TokenGrant, check_tokens
from headrace.http.problem import Problem
from headrace.model.errors import HeadraceError
from headrace.model.tokens import hash_secret

GOOD_SECONDS = 4.0  # a revoked token is rejected within 5 s: brokers learn of the revocation within the remaining time
BAD_SECONDS = 1.0
REMEMBERED_MAX = 10_000
WAITING_MAX = 1_000
TOGETHER_MAX = 100
_PATIENCE_SECONDS = 3.0  # enough to retry with another broker when one fails

_Key = tuple[str, bytes]


class _Remembered(NamedTuple):
    grant: TokenGrant | None
    until: float


class TokenChecks:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._good: dict[_Key, _Remembered] = {}
        self._bad: dict[_Key, _Remembered] = {}
        self._waiting: dict[_Key, list[asyncio.Future[TokenGrant | None]]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def check(self, token_id: str, secret: str) -> TokenGrant | None:
        """Return the grant of a token, or None if it is invalid; raise if no broker can verify it."""
        key = (token_id, hash_secret(secret))
        known = self._good.get(key) or self._bad.get(key)
        if known is not None and self._clock.monotonic() < known.until:
            return known.grant
        return await self._answer_to(key)

    def _answer_to(self, key: _Key) -> asyncio.Future[TokenGrant | None]:
        if key not in self._waiting and len(self._waiting) >= WAITING_MAX:
            raise Problem(
                503,
                "busy",
                f"{WAITING_MAX} other tokens are waiting for verification",
                "retry after the time in Retry-After",
                [("retry-after", "1")],
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[TokenGrant | None] = loop.create_future()
        self._waiting.setdefault(key, []).append(answer)
        if self._asking is None:
            self._asking = loop.create_task(self._ask())
        return answer

    async def _ask(self) -> None:
        try:
            while self._waiting:
                await self._ask_for([*self._waiting][:TOGETHER_MAX])
        finally:
            self._asking = None

    async def _ask_for(self, keys: list[_Key]) -> None:
        asked_at = self._clock.monotonic()
        try:
            grants = await self._cluster.persist(
                lambda: check_tokens(self._cluster, keys), deadline_seconds=_PATIENCE_SECONDS
            )
        except HeadraceError as error:
            for key in keys:
                for waiting in self._waiting.pop(key):
                    if not waiting.done():
                        waiting.set_exception(error)
            return
        for key, grant in zip(keys, grants, strict=True):
            self._remember(key, grant, asked_at)
            for waiting in self._waiting.pop(key):
                if not waiting.done():
                    waiting.set_result(grant)

    def _remember(self, key: _Key, grant: TokenGrant | None, asked_at: float) -> None:
        """Cache a result. The oldest entry is evicted first; invalid tokens cannot evict valid ones."""
        self._good.pop(key, None)
        self._bad.pop(key, None)
        seconds, kept = (BAD_SECONDS, self._bad) if grant is None else (GOOD_SECONDS, self._good)
        if len(kept) >= REMEMBERED_MAX:
            del kept[next(iter(kept))]
        kept[key] = _Remembered(grant, asked_at + seconds)
