"""`App`: the handlers of a worker, declared with decorators.

    app = App("billing")

    @app.subscriber("orders", retry=Retries(limit=10, backoff="2s"), on={LedgerClosed: Retry(delay="1h")})
    async def bill(order: Order, message: AsyncMessage) -> None: ...

    @app.scheduled("0 6 * * mon-fri")
    def report() -> None: ...

- A decorator returns the function unchanged, so that tests call it like any function.
- Declarations are checked when the module is imported: a worker with a wrong declaration does not start.
- A declaration opens no connection; `headrace.worker.runner` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import msgspec

from headrace.machines.delays.due_time import parse_repeat
from headrace.model.errors import InvalidRequest
from headrace.model.names import check_topic_name
from headrace.sdk.async_client import AsyncClient
from headrace.sdk.errors import Reject, Retry
from headrace.sdk.incoming import Undecodable
from headrace.sdk.messages import AsyncMessage
from headrace.sdk.streams import Start
from headrace.sdk.times import Duration, duration_ms, duration_seconds
from headrace.worker.arguments import Arguments

Function = TypeVar("Function", bound=Callable[..., Any])
Action = str | Retry | Reject | type[Retry] | type[Reject]
CallNext = Callable[[AsyncMessage], Awaitable[Any]]
Middleware = Callable[[AsyncMessage, CallNext], Awaitable[Any]]
Lifespan = Callable[[AsyncClient], AbstractAsyncContextManager[Any]]

ACK, RETRY, REJECT = "ack", "retry", "reject"
_ACTIONS = (ACK, RETRY, REJECT)
_POISON: Mapping[type[Exception], Action] = {Undecodable: REJECT}
"""A value that has not the declared type never will have: another delivery is useless."""

SCHEDULE_SUFFIX = ".schedules"


class TimeLimitExceeded(Exception):
    """The handler ran longer than its time limit."""


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how soon a message is delivered again after its handler failed. None: as the subscription is
    configured. `limit` counts deliveries; after the last one the message becomes a dead letter."""

    limit: int | None = None
    backoff: Duration | None = None
    backoff_max: Duration | None = None
    multiplier: float | None = None
    jitter: float | None = None

    def configs(self) -> dict[str, str]:
        values = {
            "share.delivery.count.limit": self.limit,
            "headrace.retry.backoff.ms": None if self.backoff is None else duration_ms(self.backoff),
            "headrace.retry.backoff.max.ms": None if self.backoff_max is None else duration_ms(self.backoff_max),
            "headrace.retry.backoff.multiplier": self.multiplier,
            "headrace.retry.jitter": self.jitter,
        }
        return {name: str(value) for name, value in values.items() if value is not None}


class Handler(msgspec.Struct, frozen=True):
    """A declared function, and how one call of it runs and ends."""

    function: Callable[..., Any]
    arguments: Arguments
    on: Mapping[type[Exception], Action]
    time_limit_seconds: float | None
    in_process: bool

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def action_for(self, error: Exception) -> Action | None:
        """The action of the nearest class in the error's ancestry, or None if no rule matches."""
        for kind in type(error).__mro__:
            if kind in self.on:
                return self.on[kind]
        return None


class Subscriber(msgspec.Struct, frozen=True):
    handler: Handler
    topic: str
    subscription: str
    start: Start
    concurrency: int | None
    lease: Duration | None
    max_work: Duration
    configs: Mapping[str, str]
    result_topic: str | None


class ScheduledHandler(msgspec.Struct, frozen=True):
    handler: Handler
    name: str
    repeat: str
    expires: Duration | None


class App:
    """`name` names the application: it is the default subscription of its handlers, and its schedules are kept in the
    topic `<name>.schedules`."""

    def __init__(self, name: str) -> None:
        check_topic_name(name + SCHEDULE_SUFFIX)
        self.name = name
        self.subscribers: list[Subscriber] = []
        self.schedules: dict[str, ScheduledHandler] = {}
        self.middlewares: list[Middleware] = []
        self.lifespans: list[Lifespan] = []

    def subscriber(
        self,
        topic: str,
        subscription: str | None = None,
        *,
        start: Start = "earliest",
        concurrency: int | None = None,
        retry: Retries | None = None,
        on: Mapping[type[Exception], Action] | None = None,
        time_limit: Duration | None = None,
        process: bool = False,
        lease: Duration | None = None,
        max_work: Duration = "1h",
        filter: str | None = None,  # noqa: A002 - as the config is called
        configs: Mapping[str, str] | None = None,
        result_topic: str | None = None,
    ) -> Callable[[Function], Function]:
        """Call the function with every message of the subscription, by default the one with the app's name.

        `concurrency` limits the messages in work, by default to the worker's. `on` maps exceptions to "ack", "retry",
        "reject", `Retry(delay=...)` or `Reject(...)`; without a rule the message is retried. `process=True` runs an
        ordinary function in a process of its own, for work that needs a core. `time_limit` ends a call, which then
        counts as failed. `retry`, `filter` and `configs` configure the subscription. `result_topic`: the result, unless
        it is None, is published there, with the key of the message, before the message is acked.
        """
        check_topic_name(topic)
        if concurrency is not None and concurrency < 1:
            raise InvalidRequest(f"concurrency={concurrency} is invalid: it must be at least 1")
        settings = {**(retry or Retries()).configs(), **(configs or {})}
        if filter is not None:
            settings["headrace.filter"] = filter

        def declare(function: Function) -> Function:
            handler = _handler(function, on, time_limit, process=process)
            name = subscription or self.name
            for other in self.subscribers:
                if (other.topic, other.subscription) == (topic, name):
                    raise InvalidRequest(
                        f"{handler.name} and {other.handler.name} would share the messages of subscription {name!r} of "
                        f"topic {topic!r}; give one of them another subscription"
                    )
            self.subscribers.append(
                Subscriber(handler, topic, name, start, concurrency, lease, max_work, settings, result_topic)
            )
            return function

        return declare

    def scheduled(
        self,
        repeat: str,
        *,
        name: str | None = None,
        expires: Duration | None = None,
        on: Mapping[type[Exception], Action] | None = None,
        time_limit: Duration | None = None,
        process: bool = False,
    ) -> Callable[[Function], Function]:
        """Call the function on a schedule: "every 10s", or five cron fields in UTC.

        Each occurrence is handled by one worker, however many run, and is retried like any message. Occurrences that
        came due while no worker ran are handled late, unless they are older than `expires`. `name` identifies the
        schedule, by default with the name of the function.
        """
        parse_repeat(repeat)
        if expires is not None:
            duration_seconds(expires)

        def declare(function: Function) -> Function:
            key = name or function.__name__
            if Arguments.of(function, in_process=False).body is not None:
                raise InvalidRequest(f"{key} is called without a value: a schedule has none")
            if key in self.schedules:
                raise InvalidRequest(f"there are two schedules named {key!r}; give one of them another name=")
            handler = _handler(function, on, time_limit, process=process)
            self.schedules[key] = ScheduledHandler(handler, key, repeat, expires)
            return function

        return declare

    def middleware(self, function: Middleware) -> Middleware:
        """Wrap every call of a handler: `async def middleware(message, call_next): return await call_next(message)`.
        The first one that is declared is the outermost."""
        if not inspect.iscoroutinefunction(function):
            raise InvalidRequest(f"middleware {function!r} must be a coroutine function (`async def`)")
        self.middlewares.append(function)
        return function

    def lifespan(self, function: Lifespan) -> Lifespan:
        """An async context manager that is entered before the first message and left after the last one; it gets the
        worker's `AsyncClient`."""
        self.lifespans.append(function)
        return function


def _handler(
    function: Callable[..., Any],
    on: Mapping[type[Exception], Action] | None,
    time_limit: Duration | None,
    *,
    process: bool,
) -> Handler:
    is_async = inspect.iscoroutinefunction(function)
    name = f"{function.__module__}.{function.__qualname__}"
    if process and is_async:
        raise InvalidRequest(f"{name} is a coroutine function; process=True takes an ordinary function")
    if process and "<" in function.__qualname__:  # <locals>, <lambda>
        raise InvalidRequest(f"{name} is local; process=True takes a function of a module, which the process imports")
    if time_limit is not None and not (is_async or process):
        raise InvalidRequest(
            f"{name} runs in a thread, which cannot be ended; for a time limit, make it a coroutine function, or run "
            "it with process=True"
        )
    rules: dict[type[Exception], Action] = {**_POISON, **(on or {})}
    for kind, action in rules.items():
        _check_rule(name, kind, action)
    seconds = None if time_limit is None else duration_seconds(time_limit)
    return Handler(function, Arguments.of(function, in_process=process), rules, seconds, process)


def _check_rule(name: str, kind: object, action: object) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise InvalidRequest(f"on= of {name}: {kind!r} is not an exception class")
    is_known = action in _ACTIONS if isinstance(action, str) else isinstance(action, (Retry, Reject))
    if not is_known and action not in (Retry, Reject):
        raise InvalidRequest(
            f"on= of {name}: {action!r} is not an action; use one of {', '.join(map(repr, _ACTIONS))}, "
            "Retry(delay=...) or Reject(reason)"
        )
