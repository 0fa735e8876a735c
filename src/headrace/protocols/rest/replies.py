"""REST requests that wait for a reply. They share one reply topic, which is created on the first such request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from headrace.client.cluster import Cluster
from headrace.client.produce.producer import Header
from headrace.client.queues.request_reply import ReplyMessage, Requests
from headrace.http.problem import Problem
from headrace.model.errors import HeadraceError, RequestTimedOut
from headrace.runtime.inline_start import switch_to_task

_CLOSE_SECONDS = 2.0


class ReplyService:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._requests: Requests | None = None
        self._opening = asyncio.Lock()

    async def request(
        self, topic: str, value: bytes, key: bytes | None, headers: Iterable[Header], timeout_seconds: float
    ) -> ReplyMessage:
        """Return the reply, or raise `Problem` 504 if none arrives in time."""
        await switch_to_task()
        requests = await self._open()
        try:
            return await requests.request(topic, value, key=key, headers=headers, timeout_seconds=timeout_seconds)
        except RequestTimedOut as error:
            raise Problem(
                504, "no_reply", error.message, "check that a consumer of the topic is running; a late reply is dropped"
            ) from None
        except HeadraceError:
            self._requests = None  # the next request creates a new reply topic in case this one is gone
            raise

    async def close(self) -> None:
        if self._requests is not None:
            with suppress(TimeoutError):  # the broker deletes the idle topic later anyway
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._requests.close()

    async def _open(self) -> Requests:
        async with self._opening:
            if self._requests is None:
                opened = Requests(self._cluster)
                await opened.__aenter__()
                self._requests = opened
            return self._requests
