"""Running handlers: errors of the lease are raised after the handlers have ended."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import cast

import pytest

from headrace.model.errors import RequestTimedOut
from headrace.sdk.messages import AsyncMessage, AsyncMessages
from headrace.sdk.working import run_handlers


class OneMessage:
    async def __aenter__(self) -> OneMessage:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


class FailingMessages:
    """One message, then the broker is unreachable."""

    def __init__(self) -> None:
        self.is_closed = False
        self._given = False

    async def __aenter__(self) -> FailingMessages:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    def __aiter__(self) -> FailingMessages:
        return self

    async def __anext__(self) -> OneMessage:
        if self._given:
            raise RequestTimedOut("no broker answers")
        self._given = True
        return OneMessage()

    def stop(self) -> None: ...

    async def close(self) -> None:
        self.is_closed = True


async def test_a_failed_lease_is_raised_after_running_handlers_have_ended() -> None:
    messages = FailingMessages()
    ended: list[AsyncMessage] = []

    async def handle(message: AsyncMessage) -> None:
        while not messages.is_closed:
            await asyncio.sleep(0)
        ended.append(message)

    with pytest.raises(RequestTimedOut, match="no broker answers"):
        await run_handlers(cast("AsyncMessages", messages), handle, concurrency=1)
    assert len(ended) == 1
