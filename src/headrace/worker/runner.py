"""Run the handlers of an `App` until it is stopped.

- A message is acked after its handler has returned and its result is published; so a worker that dies repeats it.
- An error of a handler settles its message by the rules of the handler; the worker goes on.
- While no broker is reachable the worker waits and tries again; other errors of leasing (a topic that may not be
  created, missing rights) end the worker.
- `stop` leases no more messages; handlers in progress finish, and prefetched messages are released.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from headrace.client.queues.request_reply import Responder
from headrace.model.errors import HeadraceError
from headrace.model.histogram import Histogram
from headrace.model.message_headers import REPLY_TO, header_value
from headrace.runtime.clock import Clock
from headrace.runtime.tasks import wait_until_set
from headrace.sdk.async_client import AsyncClient
from headrace.sdk.client import Client
from headrace.sdk.errors import Reject, Retry
from headrace.sdk.loop_thread import BlockingPortal
from headrace.sdk.messages import AsyncMessage
from headrace.sdk.sync_messages import Message
from headrace.sdk.working import reply, run_handlers
from headrace.worker.app import (
    ACK,
    REJECT,
    RETRY,
    SCHEDULE_SUFFIX,
    App,
    CallNext,
    Handler,
    Middleware,
    Subscriber,
)
from headrace.worker.handler_processes import HandlerProcesses, time_limit
from headrace.worker.schedules import reconcile_schedules

log = logging.getLogger("headrace.worker")

BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0)
_EXPIRY = {"headrace.expiry.enable": "true"}


class HandlerStats:
    """What the metrics say of a handler. `failed` counts calls that raised, by the action that followed."""

    def __init__(self) -> None:
        self.seconds = Histogram()
        self.in_flight = 0
        self.failed = {ACK: 0, RETRY: 0, REJECT: 0}


class Runner:
    """Runs one app on one event loop. `concurrency` is the default number of messages in work of each subscriber, and
    the number of threads and processes for handlers that are ordinary functions."""

    def __init__(self, app: App, client: AsyncClient, address: str, *, concurrency: int, processes: int) -> None:
        handlers = [one.handler for one in app.subscribers] + [one.handler for one in app.schedules.values()]
        self.stats = {handler.name: HandlerStats() for handler in handlers}
        self.outages: dict[str, str] = {}
        """Why messages of a subscriber cannot be leased now, by topic and subscription."""
        self._app = app
        self._client = client
        self._address = address
        self._concurrency = concurrency
        self._stopping = asyncio.Event()
        self._portal = BlockingPortal(asyncio.get_running_loop())
        self._sync_client: Client | None = None
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="headrace-handler")
        self._processes = HandlerProcesses(processes)

    @property
    def clock(self) -> Clock:
        return self._client.cluster.clock

    def stop(self) -> None:
        """Suitable for a signal handler."""
        self._stopping.set()
        self._client.stop()

    async def run(self) -> None:
        """Return when `stop` was called and all handlers have ended. Cancelling it releases the messages in work."""
        try:
            async with AsyncExitStack() as stack:
                for lifespan in self._app.lifespans:
                    await stack.enter_async_context(lifespan(self._client))
                responder = await stack.enter_async_context(Responder(self._client.cluster))
                async with asyncio.TaskGroup() as tasks:
                    for subscriber in self._app.subscribers:
                        invoke = partial(self._handle, subscriber, responder)
                        tasks.create_task(self._consume(subscriber, invoke))
                    if self._app.schedules:
                        tasks.create_task(self._run_schedules())
        finally:
            self._threads.shutdown(wait=False)  # a handler may wait for this loop, so waiting for it would deadlock
            self._processes.close()
            if self._sync_client is not None:
                await asyncio.to_thread(self._sync_client.close)

    # Consuming

    async def _consume(
        self,
        subscriber: Subscriber,
        handle: Callable[[AsyncMessage], Awaitable[None]],
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Handle messages until the runner is stopped; through an outage of the cluster, wait and try again."""
        concurrency = subscriber.concurrency or self._concurrency
        where = f"{subscriber.topic}/{subscriber.subscription}"
        failures = 0
        while not self._stopping.is_set():
            leased_from = self.clock.monotonic()
            try:
                if prepare is not None:
                    await prepare()
                if subscriber.configs:
                    await self._client.create_subscription(
                        subscriber.topic, subscriber.subscription, start=subscriber.start, configs=subscriber.configs
                    )
                self.outages.pop(where, None)
                messages = self._client.subscribe(
                    subscriber.topic,
                    subscriber.subscription,
                    start=subscriber.start,
                    prefetch=concurrency,
                    concurrency=concurrency,
                    lease=subscriber.lease,
                    max_work=subscriber.max_work,
                )
                await run_handlers(messages, handle, concurrency)
            except HeadraceError as error:
                if not error.retriable:
                    log.error("subscriber failed subscription=%s error=%r", where, error.message)
                    raise
                failures = failures + 1 if self.clock.monotonic() - leased_from < BACKOFF_SECONDS[-1] else 1
                seconds = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1]
                self.outages[where] = error.message
                log.warning(
                    "cannot lease messages, retrying subscription=%s error=%r retry_s=%.1f",
                    where,
                    error.message,
                    seconds,
                )
                await wait_until_set(self._stopping, seconds)

    async def _run_schedules(self) -> None:
        topic, schedules = self._app.name + SCHEDULE_SUFFIX, self._app.schedules

        async def handle(message: AsyncMessage) -> None:
            declared = schedules.get(message.key or "")
            if declared is None:  # of another version of the application that still runs or has just run
                log.warning("message of an unknown schedule is ignored message=%s key=%r", message.id, message.key)
                return
            await self._invoke(declared.handler, message)

        first = next(iter(schedules.values())).handler
        subscriber = Subscriber(
            first, topic, self._app.name, "earliest", None, None, "1h", _EXPIRY, None
        )  # the handler of each message is chosen by its key
        await self._consume(subscriber, handle, lambda: reconcile_schedules(self._client, topic, schedules))

    # Handling

    async def _handle(self, subscriber: Subscriber, responder: Responder, message: AsyncMessage) -> None:
        async def handle(message: AsyncMessage) -> Any:
            result = await self._invoke(subscriber.handler, message)
            if subscriber.result_topic is not None and result is not None:
                await self._client.publish(subscriber.result_topic, result, key=message.raw_key)
            return result

        if header_value(message.raw_headers, REPLY_TO) is None:
            await handle(message)
        else:
            await reply(responder, self.clock, message, handle)

    async def _invoke(self, handler: Handler, message: AsyncMessage) -> Any:
        """Call the handler through the middlewares; translate its error into the settlement that its rules name."""
        stats, started = self.stats[handler.name], self.clock.monotonic()
        stats.in_flight += 1
        try:
            call: CallNext = partial(self._call, handler)
            for middleware in reversed(self._app.middlewares):
                call = _wrapped(middleware, call)
            return await call(message)
        except Exception as error:  # whatever a handler raises settles its message
            action, raised = _settlement(handler, error)
            stats.failed[action] += 1
            if raised is None:
                log.info("error is ignored message=%s error=%r", message.id, error)
                return None
            raise raised from error
        finally:
            stats.in_flight -= 1
            stats.seconds.observe(self.clock.monotonic() - started)

    async def _call(self, handler: Handler, message: AsyncMessage) -> Any:
        if handler.in_process:
            return await self._processes.call(handler, message)
        arguments = handler.arguments.decode(message) | self._injected(handler, message)
        if handler.is_async:
            async with time_limit(handler.time_limit_seconds):
                return await handler.function(**arguments)
        call = partial(contextvars.copy_context().run, partial(handler.function, **arguments))
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _injected(self, handler: Handler, message: AsyncMessage) -> dict[str, Any]:
        made: dict[type, Callable[[], Any]] = {
            AsyncMessage: lambda: message,
            Message: lambda: Message(message, self._portal),
            AsyncClient: lambda: self._client,
            Client: self._client_for_threads,
        }
        return {name: made[kind]() for name, kind in handler.arguments.injected.items()}

    def _client_for_threads(self) -> Client:
        if self._sync_client is None:
            self._sync_client = Client(self._address)
        return self._sync_client


def _wrapped(middleware: Middleware, call_next: CallNext) -> CallNext:
    return lambda message: middleware(message, call_next)


def _settlement(handler: Handler, error: Exception) -> tuple[str, Exception | None]:
    """The kind of settlement, and the exception that brings it about; None acks the message."""
    action = handler.action_for(error)
    reason = f"{type(error).__name__}: {error}"
    if action == ACK:
        return ACK, None
    if action == REJECT or action is Reject:
        return REJECT, Reject(reason)
    if isinstance(action, Reject):
        return REJECT, Reject(str(action) or reason)
    if isinstance(action, Retry):
        return RETRY, Retry(str(action) or reason, action.delay)
    return (REJECT if isinstance(error, Reject) else RETRY), error
