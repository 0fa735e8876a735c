"""Valid and malformed record batches, built independently of the code under test."""

from __future__ import annotations

import gzip
import struct
import time
from collections.abc import Sequence

import crc32c

_HEADER = struct.Struct(">qiibIhiqqqhii")


def varint(value: int) -> bytes:
    """Encode a zigzag varint."""
    number = (value << 1) ^ (value >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def record(value: bytes | None, offset_delta: int = 0, key: bytes | None = None, timestamp_delta: int = 0) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + _bytes(key) + _bytes(value) + varint(0)
    return varint(len(body)) + body


def records(values: Sequence[bytes]) -> bytes:
    return b"".join(record(value, delta) for delta, value in enumerate(values))


def batch(
    payload: bytes,
    count: int,
    *,
    attributes: int = 0,
    magic: int = 2,
    crc_off_by: int = 0,
    last_offset_delta: int | None = None,
    batch_length_off_by: int = 0,
    base_offset: int = 0,
    timestamp_ms: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """Build a batch that declares `count` records and contains `payload`, by default with a correct checksum."""
    last = count - 1 if last_offset_delta is None else last_offset_delta
    timestamp = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    header = _HEADER.pack(
        base_offset,
        49 + len(payload) + batch_length_off_by,
        0,
        magic,
        0,
        attributes,
        last,
        timestamp,
        timestamp,
        *producer,
        count,
    )
    checked = header[21:] + payload
    crc = (crc32c.crc32c(checked) + crc_off_by) & 0xFFFFFFFF
    return header[:17] + struct.pack(">I", crc) + checked


def good_batch(values: Sequence[bytes], producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    return batch(records(values), len(values), producer=producer)


GZIP = 1


def gzip_batch(payload: bytes, count: int) -> bytes:
    return batch(gzip.compress(payload), count, attributes=GZIP)


def malformed_batches() -> dict[str, bytes]:
    """Return malformed batches that a broker must reject, by their defect."""
    right = records([b"one", b"two", b"three"])
    whole = good_batch([b"one", b"two", b"three"])
    return {
        "bad crc": batch(right, 3, crc_off_by=1),
        "magic 0": batch(right, 3, magic=0),
        "magic 1": batch(right, 3, magic=1),
        "magic 3": batch(right, 3, magic=3),
        "more records declared than there are": batch(right, 4),
        "fewer records declared than there are": batch(right, 2),
        "no records": batch(b"", 0),
        "a negative count": batch(right, -3),
        "a huge count": batch(right, 2**31 - 1),
        "last offset beyond the count": batch(right, 3, last_offset_delta=7),
        "last offset before the count": batch(right, 3, last_offset_delta=1),
        "compressed, more declared than there are": gzip_batch(right, 4),
        "compressed, fewer declared than there are": gzip_batch(right, 2),
        "compressed garbage": batch(b"\x1f\x8b garbage that is no gzip", 3, attributes=GZIP),
        "snappy garbage": batch(b"\xff\xff\xff\xff\x7f garbage", 3, attributes=2),
        "lz4 garbage": batch(b"no lz4 frame at all", 3, attributes=3),
        "zstd garbage": batch(b"no zstd frame at all", 3, attributes=4),
        "an unknown compression": batch(right, 3, attributes=7),
        "a gzip bomb": gzip_batch(bytes(64 * 2**20), 1),
        "a record longer than the batch": batch(varint(10_000) + right, 3),
        "a record of negative length": batch(varint(-5) + right, 3),
        "bytes after the last record": batch(right + b"\0\0\0", 3),
        "a control batch": batch(right, 3, attributes=0x20),
        "a length that is too long": batch(right, 3, batch_length_off_by=100),
        "a length that is too short": batch(right, 3, batch_length_off_by=-10),
        "a negative length": batch(right, 3, batch_length_off_by=-(2**30)),
        "a header cut short": whole[:40],
        "a batch cut short": whole[:-3],
        "two batches": whole + whole,
        "nothing": b"",
        "garbage": bytes(range(256)),
        "zeros": bytes(200),
        "a producer without a sequence": batch(right, 3, producer=(7, 0, -1)),
    }


def _bytes(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value
