"""Check what applications pass to the SDK, before anything is sent.

- Every error names the argument, its value and what is valid: a typo is never taken for a default.
- Only the type and the range are checked here. The brokers check the names and values of configs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from headrace.client.admin.subscription_admin import END, START, Position
from headrace.model.configs import Value, value_text
from headrace.model.errors import InvalidConfig, InvalidRequest, InvalidTopic
from headrace.model.names import check_topic_name
from headrace.sdk.times import time_ms

_STARTS = ("earliest", "latest")
_COMMITS = ("auto", "manual")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    valid = list(choices)
    if value not in valid:
        raise InvalidRequest(f"{name}={value!r} is not valid; use {', '.join(map(repr, valid[:-1]))} or {valid[-1]!r}")


def start_position(start: object) -> Position:
    """The position of `start`: "earliest" or "latest"."""
    check_choice("start", start, _STARTS)
    return Position(START if start == "earliest" else END)


def seek_position(to: str | datetime, now_ms: int) -> Position:
    """The position of `to`: "earliest", "latest", or a time."""
    if to in _STARTS:
        return start_position(to)
    if not isinstance(to, datetime) and not (isinstance(to, str) and to[:1].isdigit() and not to.isdigit()):
        raise InvalidRequest(f'to={to!r} is not valid; use "earliest", "latest", or a time: "2027-01-01T09:00:00Z"')
    return Position(timestamp_ms=min(time_ms(to), now_ms))


def check_commit(commit: object) -> None:
    check_choice("commit", commit, _COMMITS)


def check_count(name: str, value: object, lowest: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise InvalidRequest(f"{name}={value!r} is not valid; use a whole number, at least {lowest}")


def check_name(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{name}={value!r} is not valid; use a text that is not empty")


def check_topic(topic: object) -> None:
    if not isinstance(topic, str):
        raise InvalidTopic(f"topic={topic!r} is not valid; the name of a topic is a text")
    check_topic_name(topic)


def check_handler(handler: object) -> None:
    """The handler must accept a message: otherwise every delivery fails, until all messages are dead letters."""
    if not callable(handler):
        raise InvalidRequest(f"handler={handler!r} is not valid; use a function that takes a message")
    if not _accepts_message(handler):
        name = getattr(handler, "__name__", repr(handler))
        raise InvalidRequest(f"the handler {name} cannot be called with one argument, the message")


def config_texts(configs: Mapping[str, Value] | None) -> dict[str, str]:
    """Configs as the brokers take them: 10 becomes "10", and True becomes "true"."""
    if configs is None:
        return {}
    if not isinstance(configs, Mapping):
        raise InvalidConfig(f"configs={configs!r} is not valid; use a dict of names and values")
    for name, value in configs.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | tuple):
            raise InvalidConfig(f"the config {name!r} cannot be {value!r}; use a text, a number, a bool or a tuple")
    return {name: value_text(value) for name, value in configs.items()}


def _accepts_message(handler: Callable[..., Any]) -> bool:
    try:
        inspect.signature(handler).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function in C that does not describe its parameters
        return True
    return True
