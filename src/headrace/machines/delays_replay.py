"""A delayed log, read batch by batch into the index of what waits."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.machines.delays import Delays
from headrace.machines.delays_due import due_ms
from headrace.wire.batch import HEADER_SIZE, BatchHeader, parse_header
from headrace.wire.control import parse_marker
from headrace.wire.delayed_records import is_event, read_event, scan

UNPACKED_BYTES_MAX = 64 << 20


def batches(data: bytes) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Whole batches, back to back, as a log gives them."""
    view = memoryview(data)
    position = 0
    while position + HEADER_SIZE <= len(view):
        header = parse_header(view, position)
        yield view[position : position + header.size_bytes], header
        position += header.size_bytes


def replay(delays: Delays, data: bytes, events_end: int) -> None:
    """Take in what comes at `delays.read_to`. Events that stand at `events_end` or behind are known already: who leads
    the log applies its own when it writes them. Raises `InvalidRecord`."""
    for batch, header in batches(data):
        if is_event(header):
            if delays.read_to <= header.base_offset < events_end:
                delays.apply(read_event(batch, header), header.base_offset)
        elif header.is_control:
            marker = parse_marker(batch, header)
            if marker is not None:
                delays.decide(header.producer_id, is_commit=marker.is_commit)
        else:
            _take_in(delays, batch, header)
        delays.read_to = max(delays.read_to, header.next_offset)


def _take_in(delays: Delays, batch: memoryview, header: BatchHeader) -> None:
    # A log may begin in the middle of a batch: what lies below has been released before the log was trimmed.
    start_offset = delays.read_to
    for message in scan(batch, header, UNPACKED_BYTES_MAX):
        offset = message[0]
        if offset < start_offset:
            continue
        if header.is_transactional:
            delays.hold(header.producer_id, offset, due_ms(message))
        else:
            delays.add(offset, due_ms(message))
