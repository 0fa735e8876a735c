"""Run a handler for every message of a subscription, with limited concurrency, until it is stopped.

- A coroutine function runs on the loop. An ordinary function runs in a thread and gets a synchronous `Message`; it may
  block as long as it likes, because the loop extends the leases.
- An exception of a handler settles the message as `async with message` does.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

from headrace.client.queues.request_reply import Responder
from headrace.model.errors import HeadraceError
from headrace.model.message_headers import InvalidHeader, expires_ms_of
from headrace.runtime.clock import Clock
from headrace.sdk.daemon_threads import DaemonThreads
from headrace.sdk.loop_thread import BlockingPortal
from headrace.sdk.messages import AsyncMessage, AsyncMessages
from headrace.sdk.outgoing import encode_body
from headrace.sdk.stopping import on_interruption
from headrace.sdk.sync_messages import Message

AsyncHandler = Callable[[AsyncMessage], Awaitable[Any]]
Handler = Callable[[Message], Any]


Process = Callable[[AsyncMessage, AsyncHandler], Awaitable[Any]]
"""Calls the handler with the message."""


async def reply(responder: Responder, clock: Clock, message: AsyncMessage, handler: AsyncHandler) -> None:
    """Send the result of the handler as the reply."""
    expires_ms = expires_ms_of(message.raw_headers, message.timestamp_ms)
    if expires_ms is not None and expires_ms <= clock.now_ms():
        return  # the requester has timed out
    value, headers = encode_body(await handler(message))
    with suppress(InvalidHeader):  # a message without a reply topic
        await responder.reply(message.leased, value, headers=headers)


async def _call(message: AsyncMessage, handler: AsyncHandler) -> None:
    await handler(message)


async def run_handlers(
    messages: AsyncMessages, handler: AsyncHandler | Handler, concurrency: int, process: Process = _call
) -> None:
    """Return when the messages end and every started handler has ended."""
    on_interruption(messages.stop)
    if _is_async(handler):
        await _run(messages, cast("AsyncHandler", handler), process)
        return
    loop = asyncio.get_running_loop()
    portal = BlockingPortal(loop)
    threads = DaemonThreads(concurrency, "headrace-handler")

    async def in_thread(message: AsyncMessage) -> Any:
        return await loop.run_in_executor(threads, cast("Handler", handler), Message(message, portal))

    try:
        await _run(messages, in_thread, process)
    finally:
        portal.close()
        threads.shutdown(wait=False)  # a handler may wait for this loop, so waiting for it would deadlock


def _is_async(handler: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


async def _run(messages: AsyncMessages, handler: AsyncHandler, process: Process) -> None:
    failure: HeadraceError | None = None
    async with messages, asyncio.TaskGroup() as tasks:
        try:
            async for message in messages:
                tasks.create_task(_handle(message, handler, process))
        except HeadraceError as error:
            # No more messages can be leased, but running handlers may end. Raised below: the task group would wrap it.
            await messages.close()
            failure = error
        except BaseException:
            # Before the handlers are cancelled: a Lease request that still waits would lease again what they release.
            await messages.close()
            raise
    if failure is not None:
        raise failure


async def _handle(message: AsyncMessage, handler: AsyncHandler, process: Process) -> None:
    async with message:
        await process(message, handler)
