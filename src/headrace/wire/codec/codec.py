"""Decode and encode messages, and values that begin with their version.

- One function per (class, version) is compiled on first use.
- For any input, `decode` returns a message or raises `MalformedFrame`: every length is compared with the number of
  remaining bytes before memory is allocated for it.
- Strings and bytes are copied; `records` are views of the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, Generic, TypeVar

from headrace.model.errors import MalformedFrame
from headrace.wire.codec.compiler import compile_decoder, compile_encoder
from headrace.wire.codec.schema import Chunk, layout

M = TypeVar("M")
K = TypeVar("K")

_decoders: dict[tuple[type, int], Callable[[memoryview, int], Any]] = {}
_encoders: dict[tuple[type, int], Callable[[Any], list[Chunk]]] = {}


def decode(cls: type[M], version: int, buffer: memoryview, position: int = 0) -> M:
    """Decode the message at the position; bytes after it are ignored."""
    decoder = _decoders.get((cls, version))
    if decoder is None:
        decoder = _decoders[cls, version] = compile_decoder(cls, version)
    try:
        message: M = decoder(buffer, position)
    except (IndexError, struct_error):
        raise MalformedFrame(f"{cls.__name__} v{version} ends too early") from None
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"{cls.__name__} v{version} contains a string that is not UTF-8: {error.reason}") from None
    return message


def encode(message: object, version: int) -> list[Chunk]:
    """Encode to chunks: `records` are passed through, and everything between them is joined."""
    cls = type(message)
    encoder = _encoders.get((cls, version))
    if encoder is None:
        encoder = _encoders[cls, version] = compile_encoder(cls, version)
    return encoder(message)


def encode_bytes(message: object, version: int) -> bytes:
    """Encode a message without `records`."""
    (chunk,) = encode(message, version)
    assert isinstance(chunk, bytes)
    return chunk


# Versioned values: the keys and values of Kafka's internal topics begin with the version of their layout (int16).

_VERSION: Final = Struct(">h")
VERSION_BYTES: Final = _VERSION.size


def encode_versioned(value: object, version: int) -> bytes:
    return _VERSION.pack(version) + encode_bytes(value, version)


def decode_versioned(cls: type[M], data: bytes) -> M:
    version = version_of(data)
    declared = layout(cls)
    if not declared.min_version <= version <= declared.max_version:
        raise MalformedFrame(f"{cls.__name__} v{version} is not supported")
    return decode(cls, version, memoryview(data), VERSION_BYTES)


class RecordTypes(Generic[K]):
    """The record types of one feature in an internal topic. A key begins with the number of its type; `value_of` has
    the value that belongs to each key. All values have version 0."""

    def __init__(self, value_of: Mapping[type, type]) -> None:
        self._value_of = value_of
        self._key_of = {layout(key).min_version: key for key in value_of}

    def encode_key(self, key: K) -> bytes:
        return encode_versioned(key, layout(type(key)).min_version)

    def encode_value(self, value: object) -> bytes:
        return encode_versioned(value, 0)

    def decode_key(self, data: bytes) -> K | None:
        """Return the key, or None for a type of another feature."""
        cls: Any = self._key_of.get(version_of(data))
        return None if cls is None else decode_versioned(cls, data)

    def decode_value(self, key: K, data: bytes) -> Any:
        """Decode the value that belongs to the key."""
        return decode_versioned(self._value_of[type(key)], data)


def version_of(data: bytes) -> int:
    if len(data) < VERSION_BYTES:
        raise MalformedFrame(f"a record of {len(data)} bytes has no version")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise MalformedFrame(f"invalid record version {version}")
    return int(version)
