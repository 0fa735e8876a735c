"""Random messages of kio, another implementation of the protocol, and the comparison of its values with ours."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import types
import typing
import uuid
from enum import Enum
from functools import cache
from random import Random
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from headrace.wire.apis import APIS, Api
from headrace.wire.codec.schema import NULL_UUID

CASES = [(api, kind) for api in APIS.values() for kind in ("request", "response") if api.key < 10_000]  # Kafka's
INTEGERS = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}


def name_of(case: tuple[Api, str]) -> str:
    return f"{case[0].name}-{case[1]}"


def versions(api: Api) -> range:
    return range(api.min_version, api.max_version + 1)


def kio_class(api: Api, kind: str, version: int) -> Any:
    snake = "".join("_" + letter.lower() if letter.isupper() else letter for letter in api.name)[1:]
    module = importlib.import_module(f"kio.schema.{snake}.v{version}.{kind}")
    return getattr(module, api.name + kind.capitalize())


def kio_bytes(message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def kio_message(cls: Any, data: bytes) -> Any:
    message, size_bytes = entity_reader(cls)(data, 0)
    assert size_bytes == len(data)
    return message


def random_message(cls: Any, random: Random, *, texts: str = "aé漢", sizes: tuple[int, ...] = (0, 1, 2, 3)) -> Any:
    """Build a random message of this class with nulls, defaults, and empty and long values."""
    values: dict[str, Any] = {}
    for field, kind, is_array, nullable in _fields(cls):
        if nullable and random.random() < 0.25:
            values[field.name] = None
        elif field.default is not dataclasses.MISSING and random.random() < 0.25:
            continue
        elif is_array:
            count = random.choice(sizes)
            values[field.name] = tuple(_random_value(field, kind, random, texts, sizes) for _ in range(count))
        else:
            values[field.name] = _random_value(field, kind, random, texts, sizes)
    return cls(**values)


@cache
def _fields(cls: Any) -> list[tuple[Any, Any, bool, bool]]:
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        kind, nullable = _without_none(hints[field.name])
        is_array = typing.get_origin(kind) is tuple
        if is_array:
            kind, _ = _without_none(typing.get_args(kind)[0])
        found.append((field, kind, is_array, nullable))
    return found


def _without_none(kind: Any) -> tuple[Any, bool]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (inner,) = (part for part in typing.get_args(kind) if part is not type(None))
        return inner, True
    return kind, False


def _random_value(field: Any, kind: Any, random: Random, texts: str, sizes: tuple[int, ...]) -> Any:
    if dataclasses.is_dataclass(kind):
        return random_message(kind, random, texts=texts, sizes=sizes)
    wire_type = field.metadata["kafka_type"]
    if wire_type in INTEGERS:
        low, high = INTEGERS[wire_type]
        return kind(random.choice((0, 1, low, high, random.randint(low, high))))
    length = random.choice((0, 1, 5, 130)) if len(sizes) > 2 else 2
    match wire_type:
        case "string":
            return kind("".join(random.choices(texts, k=length)))
        case "bytes" | "records":
            return random.randbytes(length)
        case "bool":
            return random.random() < 0.5
        case "float64":
            return random.random()
        case "uuid":
            return uuid.UUID(int=random.getrandbits(128))
        case "error_code":
            return random.choice(list(ErrorCode))
        case "timedelta_i32" | "timedelta_i64":
            return kind.parse(datetime.timedelta(milliseconds=random.randint(0, 1 << 30)))
        case "datetime_i64":
            return datetime.datetime.fromtimestamp(random.randint(0, 1 << 31), datetime.UTC)
    raise AssertionError(f"{wire_type} is new")


def assert_same(ours: Any, theirs: Any) -> None:
    """Compare our message with kio's, which has other types and names for times."""
    cls: Any = type(theirs)
    for field, _, _, _ in _fields(cls):
        value = getattr(theirs, field.name)
        wire_type = field.metadata.get("kafka_type", "")
        suffixed = field.name + "_ms"
        name = suffixed if hasattr(ours, suffixed) else field.name
        # Our tagged part that was not sent is None; kio's has all defaults.
        if getattr(ours, name) is None and "tag" in field.metadata and value == field.default:
            continue
        _assert_same_value(getattr(ours, name), value, wire_type)


def _assert_same_value(ours: Any, theirs: Any, wire_type: str) -> None:
    if isinstance(theirs, tuple):
        assert isinstance(ours, list)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            _assert_same_value(one, other, wire_type)
    elif dataclasses.is_dataclass(theirs):
        assert_same(ours, theirs)
    elif wire_type == "records" and theirs is not None:
        assert bytes(ours) == theirs
    else:
        assert ours == _plain(theirs, wire_type)
        assert not isinstance(ours, Enum)


def _plain(theirs: Any, wire_type: str) -> Any:
    if wire_type == "uuid":
        return theirs or NULL_UUID
    if wire_type == "datetime_i64":
        return -1 if theirs is None else round(theirs.timestamp() * 1000)
    if isinstance(theirs, datetime.timedelta):
        return theirs // datetime.timedelta(milliseconds=1)
    return theirs.value if isinstance(theirs, Enum) else theirs
