"""Decode the record batches of Fetch responses to Arrow columns.

- Records that an application must not see are left out: control batches, with read_committed the batches of aborted
  transactions, and records outside of the range.
- Batches are decompressed when they are taken, at most one beyond the bounds of a `take`. So a small response cannot
  expand to more than memory can hold, nor a column to more than the 2 GB that its 32-bit offsets can address.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from headrace.columns.native import NativeRows, library
from headrace.columns.pure import PureRows
from headrace.columns.schema import schema_of
from headrace.model.errors import CorruptMessage, MessageTooLarge
from headrace.wire.batches.batch import HEADER_SIZE, MAGIC, BatchHeader, check_crc, parse_header
from headrace.wire.messages.fetch import FetchAbortedTransaction

ROWS_MAX: Final = 1 << 16
BYTES_MAX: Final = 8 << 20
_UNPACKED_BYTES_MAX: Final = 1 << 30
_INT64_MAX: Final = (1 << 63) - 1


class ColumnReader:
    """Reads the offsets from `start` to before `end` of one partition."""

    def __init__(
        self, topic: str, partition: int, columns: Sequence[str], start: int, end: int, *, read_committed: bool
    ) -> None:
        self.next_offset = start
        self._target = f"{topic}[{partition}]"
        self._schema = schema_of(columns)
        self._start = start
        self._end = end
        self._read_committed = read_committed
        self._native = library()
        self._native_rows = None if self._native is None else NativeRows(self._native, columns)
        self._rows: NativeRows | PureRows = self._native_rows or PureRows(columns)
        self._constants = {"topic": pa.scalar(topic, pa.string()), "partition": pa.scalar(partition, pa.int32())}
        self._repeated: dict[str, pa.Array] = {}
        self._responses: deque[_FetchedBatches] = deque()

    @property
    def rows(self) -> int:
        """How many rows are decoded and not yet taken."""
        return self._rows.rows

    @property
    def data_bytes(self) -> int:
        return self._rows.data_bytes

    def add(self, batches: memoryview, aborted: Sequence[FetchAbortedTransaction] | None = None) -> None:
        """Add one response, whose last batch may be incomplete. Then `next_offset` is the offset to fetch next."""
        size, next_offset = (self._native and self._native.whole(batches)) or _whole_batches(batches)
        if size == 0 and len(batches) > 0:
            raise MessageTooLarge(f"the next batch of {self._target} did not fit into the response")
        self.next_offset = max(self.next_offset, next_offset)
        to_abort = deque(sorted(aborted or (), key=lambda transaction: transaction.first_offset))
        self._responses.append(_FetchedBatches(batches[:size], to_abort if self._read_committed else deque()))

    def take(self, rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX) -> pa.RecordBatch | None:
        """Rows of whole batches, until a bound is reached; None if more responses must be added first."""
        assert bytes_max <= _UNPACKED_BYTES_MAX // 2
        rows = self._rows
        while rows.rows < rows_max and rows.data_bytes < bytes_max:
            if not self._responses:
                return None
            response = self._responses[0]
            if self._native_rows is not None:
                response.at = self._native_rows.add_uncompressed(
                    response.batches, response.at, self._start, self._end, rows_max, bytes_max
                )
            if response.at == len(response.batches):
                self._responses.popleft()
            elif rows.rows < rows_max and rows.data_bytes < bytes_max:
                self._add_next_batch(response)
        return self.rest()

    def _add_next_batch(self, response: _FetchedBatches) -> None:
        header = parse_header(response.batches, response.at)
        _check_header(header)
        batch = response.batches[response.at : response.at + header.size_bytes]
        response.at += header.size_bytes
        if response.is_invisible(header):
            check_crc(batch, header)  # otherwise a flipped bit could hide records
        elif header.last_offset >= self._start and header.base_offset < self._end:
            self._rows.add(batch, header, self._start, self._end, _UNPACKED_BYTES_MAX)

    def rest(self) -> pa.RecordBatch | None:
        """All rows that are decoded; None if there are none."""
        count = self._rows.rows
        if count == 0:
            return None
        columns = self._rows.take()
        arrays = [
            self._constant(name, count) if name in self._constants else columns[name] for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, count: int) -> pa.Array:
        """A constant column; slices of the longest one so far are reused."""
        repeated = self._repeated.get(name)
        if repeated is None or len(repeated) < count:
            repeated = self._repeated[name] = pa.repeat(self._constants[name], count + count // 4)
        return repeated.slice(0, count)


class _FetchedBatches:
    """The whole batches of one response, the read position, and the producers with an aborted transaction."""

    __slots__ = ("_aborted_transactions", "_aborting_producers", "at", "batches")

    def __init__(self, batches: memoryview, to_abort: deque[FetchAbortedTransaction]) -> None:
        self.batches = batches
        self.at = 0
        self._aborted_transactions = to_abort
        self._aborting_producers: set[int] = set()

    def is_invisible(self, header: BatchHeader) -> bool:
        """Whether an application must not see the next batch."""
        while self._aborted_transactions and self._aborted_transactions[0].first_offset <= header.last_offset:
            self._aborting_producers.add(self._aborted_transactions.popleft().producer_id)
        if header.is_control:
            self._aborting_producers.discard(header.producer_id)  # the marker ends the transaction
            return True
        return header.is_transactional and header.producer_id in self._aborting_producers


def _whole_batches(batches: memoryview) -> tuple[int, int]:
    """The size of the whole batches, and the offset after the last; -1 if there is none."""
    at, next_offset = 0, -1
    while len(batches) - at >= HEADER_SIZE:
        header = parse_header(batches, at)
        if at + header.size_bytes > len(batches):
            break
        _check_header(header)
        at += header.size_bytes
        next_offset = header.next_offset
    return at, next_offset


def _check_header(header: BatchHeader) -> None:
    """Check the fields that the CRC does not cover, and values that would overflow."""
    if header.magic != MAGIC:
        raise CorruptMessage(f"a batch of format {header.magic} at offset {header.base_offset}; only {MAGIC} is read")
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.next_offset > _INT64_MAX:
        raise CorruptMessage(f"a batch from offset {header.base_offset} to {header.last_offset}")
