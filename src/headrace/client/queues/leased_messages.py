"""Decode Lease responses: the messages that the application works on, each with its receipt.

- A response contains whole batches, as Fetch does. Only the offset ranges that it names are leased.
- A leased offset without a message (compaction removed it, or it is a transaction marker) is a gap.
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
    """The proof of a lease: the message, its delivery attempt, the leader epoch, and the member."""

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
    messages: list[LeasedMessage]
    gaps: list[LeaseReceipt]


def receipt_from_text(text: str) -> LeaseReceipt:
    """Raises `InvalidRequest` for anything that is not a receipt."""
    parts = _RECEIPT.fullmatch(text)
    if parts is None:
        raise InvalidRequest(f"'{text}' is not a receipt: <topic>:<partition>:<offset>/<attempt>/<epoch>/<member>")
    return LeaseReceipt(message_id_from_text(parts[1]), int(parts[2]), int(parts[3]), parts[4])


class UnpackedBatches(dict[int, UnpackedBatch]):
    """The batch of each partition that was not read to its end: the next lease continues in it."""

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
        """Drop the batch if it was read to its end."""
        found = self.get(partition)
        if found is not None and found.is_read:
            del self[partition]


def read_leased(
    topic: str, member: str, response: LeasePartitionResponse, batches: UnpackedBatches | None = None
) -> LeasedPartition:
    """Decode the messages and gaps of one partition. Records and leased ranges are both in ascending order. `batches`
    keeps batches open for a member that leases few messages at a time."""
    messages: list[LeasedMessage] = []
    gaps: list[LeaseReceipt] = []
    partition, epoch, until_ms = response.partition_index, response.lease_epoch, response.leased_until_ms

    def leave_out(begin: int, last: int, attempt: int) -> None:
        gaps.extend(
            LeaseReceipt(MessageId(topic, partition, offset), attempt, epoch, member)
            for offset in range(begin, last + 1)
        )

    records = _records(response, UnpackedBatches() if batches is None else batches)
    record = next(records, None)
    for leased in response.leased:
        expected = leased.first
        while record is not None:
            offset, timestamp_ms, key, value, headers = record
            if offset > leased.last:
                break
            if offset >= expected:
                if offset > expected:
                    leave_out(expected, offset - 1, leased.attempt)
                expected = offset + 1
                receipt = LeaseReceipt(MessageId(topic, partition, offset), leased.attempt, epoch, member)
                messages.append(LeasedMessage(receipt, timestamp_ms, key, value, headers, until_ms))
            record = next(records, None)
        leave_out(expected, leased.last, leased.attempt)
    return LeasedPartition(messages, gaps)


def _records(response: LeasePartitionResponse, open_batches: UnpackedBatches) -> Iterator[WantedRecord]:
    """The records from the first leased offset to the last."""
    if not response.leased:
        return
    first, last = response.leased[0].first, response.leased[-1].last
    batches = memoryview(response.records or b"")  # type: ignore[arg-type]
    position = 0
    while len(batches) - position >= HEADER_SIZE:
        header = parse_header(batches, position)
        batch = batches[position : position + header.size_bytes]
        position += header.size_bytes
        if not header.is_control:
            yield from open_batches.open(response.partition_index, batch, header).read(first, last)
    open_batches.close(response.partition_index)


def receipt_runs(receipts: Iterable[LeaseReceipt]) -> Iterator[list[LeaseReceipt]]:
    """Group the receipts of one partition into runs of adjacent offsets with the same delivery attempt."""
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
