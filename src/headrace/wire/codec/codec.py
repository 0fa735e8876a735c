"""Bytes to messages and back. One function per (class, version) is compiled when it is first needed.

Whatever a peer sends, `decode` returns a message or raises `MalformedFrame`: every length is checked
against the bytes that remain before anything is made of it. Strings and bytes are copied; `records` stay
views of the buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import error as struct_error
from typing import Any, TypeVar

from headrace.model.errors import MalformedFrame
from headrace.wire.codec.decoder import compile_decoder
from headrace.wire.codec.encoder import compile_encoder
from headrace.wire.codec.schema import Chunk

M = TypeVar("M")

_decoders: dict[tuple[type, int], Callable[[memoryview, int], Any]] = {}
_encoders: dict[tuple[type, int], Callable[[Any], list[Chunk]]] = {}


def decode(cls: type[M], version: int, buffer: memoryview, position: int = 0) -> M:
    """Read the message that begins at the position; bytes behind it are let be."""
    decoder = _decoders.get((cls, version))
    if decoder is None:
        decoder = _decoders[cls, version] = compile_decoder(cls, version)
    try:
        message: M = decoder(buffer, position)
    except (IndexError, struct_error):
        raise MalformedFrame(f"{cls.__name__} v{version} ends too early") from None
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"{cls.__name__} v{version} holds a string that is not UTF-8: {error.reason}") from None
    return message


def encode(message: object, version: int) -> list[Chunk]:
    """Return the message in pieces: `records` as they were given, all between them joined."""
    cls = type(message)
    encoder = _encoders.get((cls, version))
    if encoder is None:
        encoder = _encoders[cls, version] = compile_encoder(cls, version)
    return encoder(message)


def encode_bytes(message: object, version: int) -> bytes:
    """Return a message that holds no records in one piece."""
    (chunk,) = encode(message, version)
    assert isinstance(chunk, bytes)
    return chunk
