"""Turns: whatever makes or removes something by its key is alone with it, and waits for nobody with other keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeyedLock(Generic[K]):
    def __init__(self) -> None:
        self._taken: dict[K, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def take(self, keys: Iterable[K]) -> AsyncIterator[None]:
        """Begins at once, without a wait, if nobody else has one of these keys."""
        wanted = list(dict.fromkeys(keys))
        while taken := [self._taken[key] for key in wanted if key in self._taken]:
            await asyncio.shield(taken[0])
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._taken.update(dict.fromkeys(wanted, over))
        try:
            yield
        finally:
            for key in wanted:
                del self._taken[key]
            over.set_result(None)
