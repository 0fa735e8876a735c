"""Values that begin with the version of their own layout (i16): the keys and values of Kafka's internal topics."""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeVar

from headrace.model.errors import MalformedFrame
from headrace.wire.codec.codec import decode, encode_bytes
from headrace.wire.codec.schema import layout

M = TypeVar("M")
_VERSION: Final = Struct(">h")


def encode_versioned(value: object, version: int) -> bytes:
    return _VERSION.pack(version) + encode_bytes(value, version)


def decode_versioned(cls: type[M], data: bytes) -> M:
    version = version_of(data)
    declared = layout(cls)
    if not declared.min_version <= version <= declared.max_version:
        raise MalformedFrame(f"{cls.__name__} of version {version}")
    return decode(cls, version, memoryview(data), _VERSION.size)


def version_of(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise MalformedFrame(f"a record of {len(data)} bytes has no version")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise MalformedFrame(f"a record of version {version}")
    return int(version)
