"""Find out what a handler takes, and build its arguments from a message.

| parameter | argument |
| --- | --- |
| annotated `AsyncMessage` or `Message` | the leased message |
| annotated `AsyncClient` or `Client` | a client of the worker's cluster |
| the only other one, annotated with a type | the value, decoded as this type; `bytes` and `str` take it as it is |
| the only other one, without annotation | the leased message |

A handler takes its arguments by position or name; parameters with a default keep it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec

from headrace.model.errors import InvalidRequest
from headrace.sdk.async_client import AsyncClient
from headrace.sdk.client import Client
from headrace.sdk.incoming import Payload
from headrace.sdk.messages import AsyncMessage
from headrace.sdk.sync_messages import Message

_INJECTED = (AsyncMessage, Message, AsyncClient, Client)
_ASYNC, _SYNC = (AsyncMessage, AsyncClient), (Message, Client)


class Arguments(msgspec.Struct, frozen=True):
    """`injected` maps parameters to the classes that are passed to them; `body` is the parameter of the value."""

    injected: Mapping[str, type]
    body: str | None
    body_type: Any

    @classmethod
    def of(cls, function: Callable[..., Any], *, in_process: bool) -> Arguments:
        """Raises `InvalidRequest` for a function that cannot be called with a message."""
        name = f"{function.__module__}.{function.__qualname__}"
        is_async = inspect.iscoroutinefunction(function)
        try:
            hints = get_type_hints(function)
        except NameError as error:
            raise InvalidRequest(f"the type hints of {name} cannot be resolved: {error}") from error
        injected: dict[str, type] = {}
        bodies: list[tuple[str, Any]] = []
        for parameter in inspect.signature(function).parameters.values():
            hint = hints.get(parameter.name)
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if hint in _INJECTED:
                injected[parameter.name] = _check_injected(name, hint, is_async=is_async, in_process=in_process)
            elif parameter.default is parameter.empty:
                bodies.append((parameter.name, hint))
        if len(bodies) > 1:
            names = " and ".join(one for one, _ in bodies)
            raise InvalidRequest(
                f"{name} has the parameters {names}, but a message has one value; annotate the others with "
                "AsyncMessage, Message, AsyncClient or Client, or give them defaults"
            )
        body, body_type = bodies[0] if bodies else (None, None)
        if body is not None and body_type is None:
            if in_process:
                raise InvalidRequest(f"{name} runs in another process; annotate {body!r} with the type of the value")
            injected[body] = AsyncMessage if is_async else Message
            body = None
        return cls(injected, body, body_type)

    def decode(self, payload: Payload) -> dict[str, Any]:
        """The argument for the value, by name. Raises `Undecodable`."""
        if self.body is None:
            return {}
        if self.body_type is bytes:
            return {self.body: payload.value or b""}
        if self.body_type is str:
            return {self.body: payload.text}
        return {self.body: payload.json(self.body_type)}


def _check_injected(name: str, hint: type, *, is_async: bool, in_process: bool) -> type:
    if in_process:
        raise InvalidRequest(f"{name} runs in another process, where {hint.__name__} is not available")
    if hint not in (_ASYNC if is_async else _SYNC):
        fitting = _ASYNC[_SYNC.index(hint)] if is_async else _SYNC[_ASYNC.index(hint)]
        kind = "a coroutine function" if is_async else "an ordinary function"
        raise InvalidRequest(f"{name} is {kind}; annotate its parameter with {fitting.__name__}, not {hint.__name__}")
    return hint
