"""From the answer of a Lease to the messages that the application works on, each with its receipt.

Whole batches come back, as in Fetch; leased are the offsets that the answer names. Where one of them has no message
(compaction took it, or it is the marker of a transaction) there is a gap, which is settled as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from headrace.model.errors import InvalidRequest
from headrace.model.message_ids import MessageId, message_id_from_text
from headrace.wire.batch import HEADER_SIZE, check_crc, parse_header, read_records
from headrace.wire.messages.lease import LeasePartitionAnswer

_UNPACKED_BYTES_MAX = 1 << 30
_RECEIPT = re.compile(r"([^/]+)/([0-9]{1,9})/([0-9]{1,9})/(.+)", re.DOTALL)


class Receipt(NamedTuple):
    """What proves a lease: of which message, in which delivery, by whom, and in which reign of the leader."""

    id: MessageId
    attempt: int
    epoch: int
    member: str

    def __str__(self) -> str:
        return f"{self.id}/{self.attempt}/{self.epoch}/{self.member}"


class Message(NamedTuple):
    """One leased message. `leased_until_ms` is by the broker's clock."""

    receipt: Receipt
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


class Leased(NamedTuple):
    """What one partition gave."""

    messages: list[Message]
    gaps: list[Receipt]


def receipt_from_text(text: str) -> Receipt:
    """Raises `InvalidRequest` for anything that is not a receipt."""
    parts = _RECEIPT.fullmatch(text)
    if parts is None:
        raise InvalidRequest(f"'{text}' is not a receipt: <topic>:<partition>:<offset>/<attempt>/<epoch>/<member>")
    return Receipt(message_id_from_text(parts[1]), int(parts[2]), int(parts[3]), parts[4])


def read_leased(topic: str, member: str, answer: LeasePartitionAnswer) -> Leased:
    attempts = {offset: leased.attempt for leased in answer.leased for offset in range(leased.first, leased.last + 1)}
    messages: list[Message] = []
    for message in _messages(topic, member, answer, attempts):
        messages.append(message)
        del attempts[message.id.offset]
    gaps = [
        Receipt(MessageId(topic, answer.partition_index, offset), attempt, answer.lease_epoch, member)
        for offset, attempt in attempts.items()
    ]
    return Leased(messages, gaps)


def _messages(topic: str, member: str, answer: LeasePartitionAnswer, attempts: dict[int, int]) -> Iterator[Message]:
    batches = memoryview(answer.records or b"")  # type: ignore[arg-type]
    position = 0
    while len(batches) - position >= HEADER_SIZE:
        header = parse_header(batches, position)
        batch = batches[position : position + header.size_bytes]
        position += header.size_bytes
        check_crc(batch, header)
        if header.is_control:
            continue
        for record in read_records(batch, header, _UNPACKED_BYTES_MAX):
            attempt = attempts.get(record.offset)
            if attempt is not None:
                place = MessageId(topic, answer.partition_index, record.offset)
                yield Message(
                    Receipt(place, attempt, answer.lease_epoch, member),
                    record.timestamp_ms,
                    record.key,
                    record.value,
                    record.headers,
                    answer.leased_until_ms,
                )


def joined(receipts: Iterable[Receipt]) -> Iterator[list[Receipt]]:
    """Those of one partition in runs of neighbours that were delivered equally often."""
    run: list[Receipt] = []
    for receipt in sorted(receipts, key=lambda receipt: receipt.id.offset):
        if run and (run[-1].id.offset + 1, run[-1].attempt) != (receipt.id.offset, receipt.attempt):
            yield run
            run = []
        run.append(receipt)
    if run:
        yield run
