"""What brokers say of the tokens that callers present, asked seldom and remembered for a short while.

A token that was good is believed for `GOOD_SECONDS`, one that was not for `BAD_SECONDS`, counted from when a broker was
asked; so one that is revoked is of no use a few seconds later. At most one request is under way to the brokers, which
takes all tokens along that have come up since the last one. So many callers, or one who makes up tokens, cost the
brokers no more than a few requests; when too many are waiting, the next is told to come again. Secrets are neither kept
nor sent: what is remembered is remembered by its hash.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from headrace.client.cluster import Cluster
from headrace.client.tokens import TokenGrant, check_tokens
from headrace.http.problem import Problem
from headrace.model.errors import HeadraceError
from headrace.model.tokens import hash_secret

GOOD_SECONDS = 4.0  # a revoked token is refused within 5 s: the rest is for the brokers to hear of it
BAD_SECONDS = 1.0
REMEMBERED_MAX = 10_000
WAITING_MAX = 1_000
TOGETHER_MAX = 100
_PATIENCE_SECONDS = 3.0  # when a broker goes down, another answers

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
        """What its holder may do; None if there is no such token. Raises what keeps brokers from answering."""
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
                f"{WAITING_MAX} other tokens are waiting to be checked",
                "try again in a second",
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
        """The oldest is forgotten first; tokens that somebody makes up do not push out the good ones."""
        self._good.pop(key, None)
        self._bad.pop(key, None)
        seconds, kept = (BAD_SECONDS, self._bad) if grant is None else (GOOD_SECONDS, self._good)
        if len(kept) >= REMEMBERED_MAX:
            del kept[next(iter(kept))]
        kept[key] = _Remembered(grant, asked_at + seconds)
