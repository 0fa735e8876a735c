"""The partition of T that is the target of delayed messages: find out which releases it has, and append missing ones.

A release is one batch with a producer id of the leadership of the delayed log, and a sequence that counts its messages.
Releases are appended in order, so the producer state of the partition shows which ones it has. If the state of the
producer has expired, the batches after the end offset of T at the time of the announcement are searched.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.coordination.state_log import read_batches
from headrace.broker.delays.delayed_log import PartitionTerm
from headrace.broker.produce.batch_rules import prepare_batch
from headrace.machines.delays.delay_index import OpenRelease
from headrace.machines.delays.due_time import released_headers
from headrace.machines.produce.producer_states import SEQUENCE_MASK
from headrace.model.errors import NotLeader
from headrace.model.ids import MessageId
from headrace.wire.batches.batch import CRC_START, BatchHeader, BatchRecord, build_batch, parse_header, split_batches
from headrace.wire.state_records.delayed_records import Releasing

_RECORD_BYTES = 64  # approximate overhead of a record in addition to key, value and headers

EncodedBatch = tuple[memoryview, BatchHeader]


class DelayTarget(PartitionTerm):
    def ensure_writable(self) -> None:
        """Raise unless a batch can be committed now."""
        self.ensure_leader()
        if self.partition.writes_suspended:
            raise NotLeader(f"this broker may no longer be the leader of {self.partition.topic}-{self.partition.index}")
        self.partition.ensure_min_isr()

    def append(self, batch: EncodedBatch, now_ms: int) -> int:
        """Append a release; return the end offset that must be committed in T."""
        self.ensure_leader()
        end_offset = self.partition.append(*batch, now_ms).end_offset
        self.partition.counts.produced(len(batch[0]), batch[1].record_count)
        return end_offset

    async def missing(self, releases: Sequence[OpenRelease]) -> list[OpenRelease]:
        """Return the releases that are not in the log, in order."""
        if not releases:
            return []
        missing: list[OpenRelease] = []
        doubtful: list[OpenRelease] = []
        known = {one.producer_id: one.last_sequence for one in self.partition.state.producers.describe()}
        for producer in dict.fromkeys(release.announced.producer for release in releases):
            its = [release for release in releases if release.announced.producer == producer]
            begun = [release.announced.sequence for release in its]
            next_sequence = (known.get(producer, -1) + 1) & SEQUENCE_MASK
            if known.get(producer, -1) < 0 or (
                next_sequence not in begun and next_sequence != _next_sequence(its[-1].announced)
            ):
                doubtful += its
            elif next_sequence in begun:
                missing += its[begun.index(next_sequence) :]
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
            self.ensure_leader()
            found.update((header.producer_id, header.base_sequence) for _, header in split_batches(data))
        return found


def build_release(announced: Releasing, messages: Sequence[BatchRecord], origin: str, index: int) -> EncodedBatch:
    """Build the batch of a release, with the same bytes on every leader. `origin` is the delayed topic."""
    records = [
        BatchRecord(
            key=message.key,
            value=message.value,
            headers=released_headers(message.headers, str(MessageId(origin, index, message.offset))),
            timestamp_ms=announced.at,
        )
        for message in messages
    ]
    batch = build_batch(records, producer_id=announced.producer, producer_epoch=0, base_sequence=announced.sequence)
    return memoryview(batch), parse_header(batch)


def compress_for_topic(batch: EncodedBatch, target: DelayTarget) -> EncodedBatch:
    """Compress the batch according to T's config; raise `InvalidRecord` if T cannot store such messages."""
    return prepare_batch(*batch, bytes(batch[0][CRC_START:]), target.partition.config)


def estimate_record_bytes(message: BatchRecord) -> int:
    headers = sum(len(name) + len(value or b"") + 8 for name, value in message.headers)
    return len(message.key or b"") + len(message.value or b"") + headers + _RECORD_BYTES


def _next_sequence(announced: Releasing) -> int:
    return (announced.sequence + len(announced.offsets)) & SEQUENCE_MASK
