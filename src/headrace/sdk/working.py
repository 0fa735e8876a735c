"""Run a handler for every message of a subscription, so many at a time, until it is stopped.

A coroutine function runs on the loop. An ordinary function runs in a thread, and gets the message's sync twin, so that
it may block as long as it likes: the loop extends the leases. Whatever a handler raises is settled as `async with
message` does it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

from headrace.client.queues.request_reply import Responder
from headrace.model.errors import HeadraceError
from headrace.model.message_headers import InvalidHeader, expires_ms_of
from headrace.runtime.clock import Clock
from headrace.sdk.loop_thread import BlockingPortal
from headrace.sdk.messages import AsyncMessage, AsyncMessages
from headrace.sdk.outgoing import encode_body
from headrace.sdk.sync_messages import Message

AsyncHandler = Callable[[AsyncMessage], Awaitable[Any]]
Handler = Callable[[Message], Any]


class RequestReplier:
    """Sends back what handlers return, to whoever asked for it."""

    def __init__(self, responder: Responder, clock: Clock) -> None:
        self._responder = responder
        self._clock = clock

    async def answer(self, message: AsyncMessage, handler: AsyncHandler) -> None:
        expires_ms = expires_ms_of(message.raw_headers, message.timestamp_ms)
        if expires_ms is not None and expires_ms <= self._clock.now_ms():
            return  # nobody waits for it any more
        value, headers = encode_body(await handler(message))
        with suppress(InvalidHeader):  # it asks for no reply
            await self._responder.reply(message.leased, value, headers=headers)


async def run_handlers(
    messages: AsyncMessages, handler: AsyncHandler | Handler, concurrency: int, answering: RequestReplier | None = None
) -> None:
    """Return when the messages end, and every handler that was begun has ended."""
    if _is_async(handler):
        await _run(messages, cast("AsyncHandler", handler), answering)
        return
    loop = asyncio.get_running_loop()
    portal = BlockingPortal(loop)
    threads = ThreadPoolExecutor(concurrency, thread_name_prefix="headrace-handler")

    async def in_thread(message: AsyncMessage) -> Any:
        return await loop.run_in_executor(threads, cast("Handler", handler), Message(message, portal))

    try:
        await _run(messages, in_thread, answering)
    finally:
        threads.shutdown(wait=False)  # whoever is cancelled does not wait: a handler may wait for this very loop


def _is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


async def _run(messages: AsyncMessages, handler: AsyncHandler, answering: RequestReplier | None) -> None:
    failure: HeadraceError | None = None
    async with messages, asyncio.TaskGroup() as tasks:
        try:
            async for message in messages:
                tasks.create_task(_handle(message, handler, answering))
        except HeadraceError as error:
            # No more can be leased. Those that were begun may end; and the group would wrap the error.
            await messages.close()
            failure = error
        except BaseException:
            # Before the handlers are cancelled: a Lease that still waits would take again what they give back.
            await messages.close()
            raise
    if failure is not None:
        raise failure


async def _handle(message: AsyncMessage, handler: AsyncHandler, answering: RequestReplier | None) -> None:
    async with message:
        if answering is None:
            await handler(message)
        else:
            await answering.answer(message, handler)
