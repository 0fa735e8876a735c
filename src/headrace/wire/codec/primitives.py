"""Variable-length integers, tagged fields and ids, for compiled and other code.

An unsigned varint has seven bits per byte, lowest first. A signed one is zigzag encoded: 0, -1, 1, -2 become 0, 1, 2,
3.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from uuid import UUID

from headrace.model.errors import MalformedFrame

Buffer = bytes | bytearray | memoryview

ONE_BYTE: Final = tuple(bytes([value]) for value in range(256))


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 0x80:
        return ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """Encode a signed (zigzag) varint of up to 64 bits."""
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return the 32-bit value and the position after it."""
    first = buffer[position]
    if first < 0x80:
        return first, position + 1
    return uvarint_rest(buffer, position + 1, first)


def uvarint_rest(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Read the rest of a varint whose first byte has the high bit set."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFF, position
    raise MalformedFrame("a varint is longer than 5 bytes")


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return the signed 64-bit value and the position after it."""
    value = buffer[position]
    position += 1
    if value < 0x80:
        return (value >> 1) ^ -(value & 1), position
    value &= 0x7F
    shift = 7
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise MalformedFrame("a varint is longer than 10 bytes")


def skip_tags(buffer: Buffer, position: int, count: int, end: int) -> int:
    """Return the position after a tagged section whose first count byte has been read."""
    count, position = tag_count(buffer, position, count)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size_bytes, position = read_uvarint(buffer, position)
        if size_bytes > end - position:
            raise MalformedFrame(f"a tagged field has {size_bytes} bytes, but only {end - position} remain")
        position += size_bytes
    return position


def tag_count(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    if first < 0x80:
        return first, position
    count, position = uvarint_rest(buffer, position, first)
    if count > 10_000:
        raise MalformedFrame(f"{count} tagged fields in one struct")
    return count, position


@lru_cache(maxsize=4096)
def uuid_of(data: bytes) -> UUID:
    """Return a cached UUID: creating one takes a microsecond, and every request has the same topic ids."""
    return UUID(bytes=data)
