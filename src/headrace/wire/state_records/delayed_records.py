"""Records of `__delayed.T`: delayed messages of clients, and the broker's own events.

An event is a record with the header `headrace-event`, in a batch with the base sequence -2. Clients write -1 or count
from 0, so an event that a client copied from another log is not mistaken for one. The key and the header of an event
contain its type; its value is JSON, with `type` first:

    releasing    these messages are being appended to T, in one batch, in this order; written before that
    released     all messages announced up to this offset of the delayed log are committed in T
    cancelled    these messages are not delivered
    rescheduled  this message has another due time
    dropped      these messages cannot be appended to T, with the reason

`scan_waiting` reads a log after a restart: it decodes only the headers that determine the due time, because a million
messages must be read within seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from headrace.model.errors import InvalidRecord, MalformedFrame
from headrace.model.message_headers import DELAY, DELIVER_AT, REPEAT
from headrace.wire.batches.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    BatchHeader,
    BatchRecord,
    build_batch,
    read_records,
)
from headrace.wire.batches.compression import decompress
from headrace.wire.codec.primitives import read_varint

EVENT: Final = "headrace-event"
DELAYED_ID: Final = "headrace-delayed-id"
"""The header of a delivered message with the id that it had while it was delayed."""

_EVENT_SEQUENCE: Final = -2
_KEY_PREFIX: Final = "headrace:"
_EVENT_BYTES_MAX: Final = 16 << 20
_DELIVER_AT: Final = DELIVER_AT.encode()
_DELAY: Final = DELAY.encode()
_REPEAT: Final = REPEAT.encode()
_EVENT: Final = EVENT.encode()
_NULL: Final = 1  # the length -1 as a varint
_NAMES: Final = {_DELIVER_AT: 0, _DELAY: 1, _REPEAT: 2, _EVENT: 3}


class Releasing(msgspec.Struct, tag="releasing", frozen=True, gc=False):
    """`at` is the timestamp of the messages in T, `end` the log end offset of T when this was written. `again` has the
    offsets and next due times of repeated messages. Releases announced up to the offset `done` are complete."""

    at: int
    producer: int
    sequence: int
    end: int
    offsets: list[int]
    again: list[tuple[int, int]] = []
    done: int = -1


class Released(msgspec.Struct, tag="released", frozen=True, gc=False):
    at: int
    done: int


class Cancelled(msgspec.Struct, tag="cancelled", frozen=True, gc=False):
    at: int
    offsets: list[int]


class Rescheduled(msgspec.Struct, tag="rescheduled", frozen=True, gc=False):
    at: int
    offset: int
    due: int


class Dropped(msgspec.Struct, tag="dropped", frozen=True, gc=False):
    at: int
    offsets: list[int]
    reason: str


DelayedEvent = Releasing | Released | Cancelled | Rescheduled | Dropped

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(DelayedEvent)


WaitingMessage = tuple[int, int, bytes | None, bytes | None, bytes | None]
"""Offset and timestamp of a message, and its last headers for delivery time, delay and repeat. A plain tuple, because a
restart creates a million of them."""


def build_event(event: DelayedEvent) -> bytearray:
    """Build the batch of an event."""
    kind = str(event.__struct_config__.tag)
    record = BatchRecord(
        key=(_KEY_PREFIX + kind).encode(),
        value=_encoder.encode(event),
        headers=[(EVENT, kind.encode())],
        timestamp_ms=event.at,
    )
    return build_batch([record], base_sequence=_EVENT_SEQUENCE)


def is_event(header: BatchHeader) -> bool:
    return header.base_sequence == _EVENT_SEQUENCE and header.producer_id < 0


def read_event(batch: memoryview, header: BatchHeader) -> DelayedEvent:
    """Return the event of a batch; raise `InvalidRecord` unless `build_event` has built it."""
    for record in read_records(batch, header, _EVENT_BYTES_MAX):
        try:
            event: DelayedEvent = _decoder.decode(record.value or b"")
            return event
        except msgspec.MsgspecError as error:
            raise InvalidRecord(f"the event at offset {record.offset} cannot be read: {error}") from None
    raise InvalidRecord(f"the batch at offset {header.base_offset} has no event")


def scan_waiting(batch: memoryview, header: BatchHeader, size_bytes_max: int) -> Iterator[WaitingMessage]:
    """Yield the messages of a batch, without records that have the header of an event, even if a client wrote them."""
    data = decompress(header.compression, batch[HEADER_SIZE : header.size_bytes], size_bytes_max)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    appended_ms = header.max_timestamp if header.is_log_append_time else None
    position = 0
    try:
        for _ in range(header.record_count):
            size_bytes, position = read_varint(data, position)
            end = position + size_bytes
            timestamp_delta, position = read_varint(data, position + 1)
            offset_delta, position = read_varint(data, position)
            position = _position_after(data, _position_after(data, position))  # key and value
            found = _NOTHING if data[position] == 0 else _scan_headers(data, position)
            position = end
            if found[3] is None:
                timestamp_ms = base_timestamp + timestamp_delta if appended_ms is None else appended_ms
                yield base_offset + offset_delta, timestamp_ms, found[0], found[1], found[2]
    except (IndexError, MalformedFrame):
        raise InvalidRecord(f"a record of the batch at offset {base_offset} ends too early") from None
    if position != len(data):
        raise InvalidRecord(f"the records of the batch at offset {base_offset} do not add up to its size")


def read_records_at(
    batch: memoryview, header: BatchHeader, offsets: Iterable[int], size_bytes_max: int
) -> Iterator[BatchRecord]:
    """Return the records at these offsets, in order. The others are skipped, which takes a twentieth of the time of
    reading them: usually only a few messages of a large batch are due at the same time."""
    if header.record_count != header.last_offset_delta + 1:  # compaction removed some
        wanted = set(offsets)
        return (record for record in read_records(batch, header, size_bytes_max) if record.offset in wanted)
    data = decompress(header.compression, batch[HEADER_SIZE : header.size_bytes], size_bytes_max)
    frames = bytearray(HEADER_SIZE)
    position = index = count = 0
    try:
        for offset in sorted(offsets):
            count += 1
            while index <= offset - header.base_offset:
                start = position
                position = _position_after(data, position)
                index += 1
            frames += data[start:position]
    except (IndexError, MalformedFrame):
        raise InvalidRecord(f"a record of the batch at offset {header.base_offset} ends too early") from None
    attributes = header.attributes & ~COMPRESSION_MASK
    picked = replace(header, size_bytes=len(frames), record_count=count, attributes=attributes)
    return read_records(memoryview(frames), picked, len(frames))


_NOTHING: Final[Sequence[bytes | None]] = (None, None, None, None)


def _position_after(data: bytes, position: int) -> int:
    """Return the position after a part. Most are short or null, so that their length is one byte."""
    size_bytes = data[position]
    if size_bytes == _NULL:
        return position + 1
    if size_bytes < 0x80:
        return position + 1 + (size_bytes >> 1)
    size_bytes, position = read_varint(data, position)
    return position + size_bytes


def _scan_headers(data: bytes, position: int) -> Sequence[bytes | None]:
    """Return the values of the headers in `_NAMES`, in that order."""
    count, position = read_varint(data, position)
    found: list[bytes | None] = [None, None, None, None]
    for _ in range(count):
        following = _position_after(data, position)
        # The relevant names are short, so their length is one byte.
        at = _NAMES.get(data[position + 1 : following])
        position = following
        following = _position_after(data, position)
        if at is not None:
            size_bytes, position = read_varint(data, position)
            found[at] = data[position:following] if size_bytes >= 0 else b""
        position = following
    return found
