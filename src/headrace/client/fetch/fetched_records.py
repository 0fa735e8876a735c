"""Decode Fetch responses: the records that the application may see.

- A response contains whole batches, also if the requested offset is inside one; the last batch may be incomplete.
- Records before the position, control batches and, with `read_committed`, batches of aborted transactions are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.client.metadata import TopicPartition
from headrace.model.errors import MessageTooLarge
from headrace.wire.batches.batch import HEADER_SIZE, check_crc, parse_header, read_records
from headrace.wire.messages.fetch import FetchAbortedTransaction

_UNPACKED_BYTES_MAX = 1 << 30


class ConsumedRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class FetchedRecords:
    """The records of one partition in one response; decodes lazily and advances `next_offset`. `next_offset` includes
    skipped records, so that a position never waits for an invisible record."""

    __slots__ = ("_aborted", "_batches", "next_offset", "size_bytes", "target")

    def __init__(
        self,
        target: TopicPartition,
        batches: memoryview,
        position: int,
        aborted: Sequence[FetchAbortedTransaction] | None = None,
    ) -> None:
        self.target = target
        self._batches = batches
        self._aborted = sorted(aborted or (), key=lambda transaction: transaction.first_offset)
        self.next_offset = position
        self.size_bytes = len(batches)

    @property
    def end_offset(self) -> int:
        """The offset after the last complete batch, to fetch next."""
        end = self.next_offset
        for _, header_end in self._frames():
            end = header_end
        return end

    def __iter__(self) -> Iterator[ConsumedRecord]:
        topic, partition = self.target
        aborting: set[int] = set()
        waiting = self._aborted
        for batch, end in self._frames():
            header = parse_header(batch)
            check_crc(batch, header)
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborting.add(waiting.pop(0).producer_id)
            if header.is_control:
                # The marker ends the producer's transaction, aborted or committed.
                aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                position = self.next_offset
                for record in read_records(batch, header, _UNPACKED_BYTES_MAX):
                    if record.offset >= position:
                        self.next_offset = record.offset + 1
                        yield ConsumedRecord(
                            topic,
                            partition,
                            record.offset,
                            record.timestamp_ms,
                            record.key,
                            record.value,
                            record.headers,
                        )
            self.next_offset = max(self.next_offset, end)

    def _frames(self) -> Iterator[tuple[memoryview, int]]:
        """Each complete batch, and the offset after it."""
        start = 0
        while len(self._batches) - start >= HEADER_SIZE:
            header = parse_header(self._batches, start)
            stop = start + header.size_bytes
            if stop > len(self._batches):
                break
            yield self._batches[start:stop], header.next_offset
            start = stop
        if start == 0 and len(self._batches) > 0:
            raise MessageTooLarge(f"the next batch of {self.target} did not fit into the answer")
