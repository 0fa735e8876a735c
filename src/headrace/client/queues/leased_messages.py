"""From the answer of a Lease to the messages that the application works on, each with its receipt.

Whole batches come back, as in Fetch; leased are the offsets that the answer names. Where one of them has no message
(compaction took it, or it is the marker of a transaction) there is a gap, which is settled as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from headrace.model.errors import InvalidRequest
from headrace.model.ids import MessageId, message_id_from_text
from headrace.wire.batches.batch import HEADER_SIZE, BatchHeader, parse_header
from headrace.wire.batches.wanted_records import UnpackedBatch, WantedRecord
from headrace.wire.messages.queues import LeasePartitionResponse

_UNPACKED_BYTES_MAX = 1 << 30
_KEPT_BYTES_MAX = 1 << 20  # of one partition
_RECEIPT = re.compile(r"([^/]+)/([0-9]{1,9})/([0-9]{1,9})/(.+)", re.DOTALL)


class LeaseReceipt(NamedTuple):
    """What proves a lease: of which message, in which delivery, by whom, and in which reign of the leader."""

    id: MessageId
    attempt: int
    epoch: int
    member: str

    def __str__(self) -> str:
        return f"{self.id}/{self.attempt}/{self.epoch}/{self.member}"


class LeasedMessage(NamedTuple):
    """One leased message. `leased_until_ms` is by the broker's clock."""

    receipt: LeaseReceipt
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    leased_until_ms: int

    @property
    def id(self) -> MessageId:
        return self.receipt.id

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self.receipt.attempt


class LeasedPartition(NamedTuple):
    """What one partition gave."""

    messages: list[LeasedMessage]
    gaps: list[LeaseReceipt]


def receipt_from_text(text: str) -> LeaseReceipt:
    """Raises `InvalidRequest` for anything that is not a receipt."""
    parts = _RECEIPT.fullmatch(text)
    if parts is None:
        raise InvalidRequest(f"'{text}' is not a receipt: <topic>:<partition>:<offset>/<attempt>/<epoch>/<member>")
    return LeaseReceipt(message_id_from_text(parts[1]), int(parts[2]), int(parts[3]), parts[4])


class UnpackedBatches(dict[int, UnpackedBatch]):
    """The batch of each partition that was read last and not to its end: the next lease goes on in it."""

    def open(self, partition: int, batch: memoryview, header: BatchHeader) -> UnpackedBatch:
        found = self.get(partition)
        if found is None or not found.is_of(header):
            found = UnpackedBatch(batch, header, _UNPACKED_BYTES_MAX)
            if len(found) <= _KEPT_BYTES_MAX:
                self[partition] = found
            else:
                self.pop(partition, None)
        return found

    def close(self, partition: int) -> None:
        """What was read to its end is not needed any more."""
        found = self.get(partition)
        if found is not None and found.is_read:
            del self[partition]


def read_leased(
    topic: str, member: str, answer: LeasePartitionResponse, batches: UnpackedBatches | None = None
) -> LeasedPartition:
    """Records and leased ranges both ascend. Whoever leases bit by bit says what it has kept open."""
    messages: list[LeasedMessage] = []
    gaps: list[LeaseReceipt] = []
    partition, epoch, until_ms = answer.partition_index, answer.lease_epoch, answer.leased_until_ms

    def leave_out(begin: int, last: int, attempt: int) -> None:
        gaps.extend(
            LeaseReceipt(MessageId(topic, partition, offset), attempt, epoch, member)
            for offset in range(begin, last + 1)
        )

    ranges = iter(answer.leased)
    current = next(ranges, None)
    expected = 0 if current is None else current.first
    for offset, timestamp_ms, key, value, headers in _records(
        answer, UnpackedBatches() if batches is None else batches
    ):
        while current is not None and offset > current.last:
            leave_out(expected, current.last, current.attempt)
            current = next(ranges, None)
            expected = 0 if current is None else current.first
        if current is None:
            break
        if offset < expected:
            continue
        if offset > expected:
            leave_out(expected, offset - 1, current.attempt)
        expected = offset + 1
        receipt = LeaseReceipt(MessageId(topic, partition, offset), current.attempt, epoch, member)
        messages.append(LeasedMessage(receipt, timestamp_ms, key, value, headers, until_ms))
    while current is not None:
        leave_out(expected, current.last, current.attempt)
        current = next(ranges, None)
        expected = 0 if current is None else current.first
    return LeasedPartition(messages, gaps)


def _records(answer: LeasePartitionResponse, open_batches: UnpackedBatches) -> Iterator[WantedRecord]:
    """Those from the first that is leased to the last."""
    if not answer.leased:
        return
    first, last = answer.leased[0].first, answer.leased[-1].last
    batches = memoryview(answer.records or b"")  # type: ignore[arg-type]
    position = 0
    while len(batches) - position >= HEADER_SIZE:
        header = parse_header(batches, position)
        batch = batches[position : position + header.size_bytes]
        position += header.size_bytes
        if not header.is_control:
            yield from open_batches.open(answer.partition_index, batch, header).read(first, last)
    open_batches.close(answer.partition_index)


def receipt_runs(receipts: Iterable[LeaseReceipt]) -> Iterator[list[LeaseReceipt]]:
    """Those of one partition in runs of neighbours that were delivered equally often."""
    run: list[LeaseReceipt] = []
    expected: tuple[int, int] | None = None
    for receipt in sorted(receipts):
        (_, _, offset), attempt, _, _ = receipt
        if run and (offset, attempt) != expected:
            yield run
            run = []
        run.append(receipt)
        expected = (offset + 1, attempt)
    if run:
        yield run
