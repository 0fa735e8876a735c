"""The partition of T that is the target of delayed messages: find out which releases it has, and append missing ones.

A release is one batch with a producer id of the leadership of the delayed log, and a sequence that counts its messages.
Releases are appended in order, so the producer state of the partition shows which ones it has. If the state of the
producer has expired, the batches after the end offset of T at the time of the announcement are searched.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.batch_rules import prepare
from headrace.broker.partition import Partition
from headrace.broker.state_log import read_batches
from headrace.machines.delays import Open
from headrace.machines.delays_due import released_headers
from headrace.machines.delays_replay import batches
from headrace.machines.producers import SEQUENCE_MASK
from headrace.model.errors import NotLeader
from headrace.model.message_ids import MessageId
from headrace.wire.batch import CRC_START, BatchHeader, Record, build_batch, parse_header
from headrace.wire.delayed_records import Releasing

_PRODUCER_EPOCH = 0
_RECORD_BYTES = 64  # approximate overhead of a record in addition to key, value and headers

Batch = tuple[memoryview, BatchHeader]


class Target:
    """T's partition, for one leadership."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._epoch = partition.leader_epoch

    @property
    def is_led(self) -> bool:
        return self.partition.is_leader and self.partition.leader_epoch == self._epoch

    def ensure_able(self) -> None:
        """Raise unless a batch can be committed now."""
        self.ensure_led()
        if self.partition.writes_suspended:
            raise NotLeader(f"this broker may no longer be the leader of {self.partition.topic}-{self.partition.index}")
        self.partition.ensure_enough()

    def ensure_led(self) -> None:
        if not self.is_led:
            raise NotLeader(f"this broker is no longer the leader of {self.partition.topic}-{self.partition.index}")

    def append(self, batch: Batch, now_ms: int) -> int:
        """Append a release; return the end offset that must be committed in T."""
        self.ensure_led()
        end_offset = self.partition.append(*batch, now_ms).end_offset
        self.partition.counts.produced(len(batch[0]), batch[1].record_count)
        return end_offset

    async def missing(self, releases: Sequence[Open]) -> list[Open]:
        """Return the releases that are not in the log, in order."""
        if not releases:
            return []
        missing: list[Open] = []
        doubtful: list[Open] = []
        known = {one.producer_id: one.last_sequence for one in self.partition.state.producers.describe()}
        for producer in dict.fromkeys(release.announced.producer for release in releases):
            its = [release for release in releases if release.announced.producer == producer]
            begun = [release.announced.sequence for release in its]
            coming = (known.get(producer, -1) + 1) & SEQUENCE_MASK
            if known.get(producer, -1) < 0 or (coming not in begun and coming != _behind(its[-1].announced)):
                doubtful += its
            elif coming in begun:
                missing += its[begun.index(coming) :]
        if doubtful:
            present = await self._present(min(release.announced.end for release in doubtful))
            missing += (one for one in doubtful if (one.announced.producer, one.announced.sequence) not in present)
        return sorted(missing, key=lambda release: release.offset)

    async def _present(self, offset: int) -> set[tuple[int, int]]:
        """Return producer ids and sequences of all batches from an offset on."""
        found: set[tuple[int, int]] = set()
        log = self.partition.log
        end_offset = log.end_offset
        offset = max(offset, log.start_offset)
        while offset < end_offset:
            data, offset = await read_batches(self.partition, offset, end_offset)
            self.ensure_led()
            found.update((header.producer_id, header.base_sequence) for _, header in batches(data))
        return found


def build_release(announced: Releasing, messages: Sequence[Record], origin: str, index: int) -> Batch:
    """Build the batch of a release, with the same bytes on every leader. `origin` is the delayed topic."""
    records = [
        Record(
            key=message.key,
            value=message.value,
            headers=released_headers(message.headers, str(MessageId(origin, index, message.offset))),
            timestamp_ms=announced.at,
        )
        for message in messages
    ]
    batch = build_batch(
        records,
        producer_id=announced.producer,
        producer_epoch=_PRODUCER_EPOCH,
        base_sequence=announced.sequence,
    )
    return memoryview(batch), parse_header(batch)


def compressed(batch: Batch, target: Target) -> Batch:
    """Compress the batch according to T's config; raise `InvalidRecord` if T cannot store such messages."""
    return prepare(*batch, bytes(batch[0][CRC_START:]), target.partition.config)


def size_bytes_of(message: Record) -> int:
    """Return the approximate size of a message in a batch."""
    headers = sum(len(name) + len(value or b"") + 8 for name, value in message.headers)
    return len(message.key or b"") + len(message.value or b"") + headers + _RECORD_BYTES


def _behind(announced: Releasing) -> int:
    return (announced.sequence + len(announced.offsets)) & SEQUENCE_MASK
