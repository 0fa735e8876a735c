"""Iterate over batches that were read from a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.machines.transactions.partition_transactions import AbortedTransaction
from headrace.wire.batches.batch import HEADER_SIZE, BatchHeader, parse_header


def split_batches(data: bytes) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Yield the complete batches in these bytes."""
    view = memoryview(data)
    position = 0
    while position + HEADER_SIZE <= len(view):
        header = parse_header(view, position)
        yield view[position : position + header.size_bytes], header
        position += header.size_bytes


def is_aborted(header: BatchHeader, aborted: Sequence[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        one.producer_id == header.producer_id and one.first_offset <= header.base_offset < one.last_offset
        for one in aborted
    )
