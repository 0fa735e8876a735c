"""Recently rejected batches of idempotent producers: later batches get the same retriable error instead of a gap.

A producer has several batches in flight. If the first is rejected temporarily (no leadership yet, disk full, too few
replicas), and the second could be appended when it arrives, the second has a gap in its sequence. The producer has made
no mistake: it will retry the first. If it got the error for a gap, librdkafka would begin a new epoch for all its
partitions, and batches that were appended in another partition but not acknowledged yet would be appended there twice.
For a producer that is new to the partition, the second batch would be accepted as the first, and the first would be
lost. So later batches are rejected with the error of the first, until that was retried or a timeout has passed.

The previous leader may have rejected the first batch when its leadership ended, while a client that already knows the
new leader has sent the second one there. So a new leader also responds to a gap with a retriable error for a while.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from headrace.broker.partition import Partition
from headrace.machines.produce.producer_states import AHEAD_MAX, SEQUENCE_MASK, ProducerStates
from headrace.model.errors import CorruptMessage, HeadraceError, NotLeader, OutOfOrderSequence
from headrace.wire.batches.batch import BatchHeader

GAP_TIMEOUT_SECONDS = 30.0  # by then, a producer has retried its first batch if it still needs it
_PRODUCERS_MAX = 10_000

ProducerPartition = tuple[str, UUID, int]
"""A partition as identified in a request: by the topic's name or id."""


class _RejectedBatch(NamedTuple):
    producer_epoch: int
    base_sequence: int
    error: HeadraceError
    at: float


class SequenceGapGuard:
    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[tuple[ProducerPartition, int], _RejectedBatch] = {}

    def __bool__(self) -> bool:
        return bool(self._first)

    def check_no_gap(
        self, producer_partition: ProducerPartition, header: BatchHeader, producers: ProducerStates, now: float
    ) -> None:
        """Raise the error of an earlier rejected batch of this producer that was not retried, here or at another
        leader."""
        key = producer_partition, header.producer_id
        first = self._first.get(key)
        if first is None:
            return
        is_ahead = 0 < (header.base_sequence - first.base_sequence) & SEQUENCE_MASK <= AHEAD_MAX
        if first.producer_epoch != header.producer_epoch or now - first.at > GAP_TIMEOUT_SECONDS:
            del self._first[key]
        elif is_ahead and not producers.is_next_in_sequence(header):
            raise first.error

    def record_rejection(
        self, producer_partition: ProducerPartition, header: BatchHeader, error: HeadraceError, now: float
    ) -> None:
        if header.producer_id < 0 or not error.retriable or isinstance(error, CorruptMessage):
            return
        key = producer_partition, header.producer_id
        first = self._first.get(key)
        if (
            first is None
            or first.producer_epoch != header.producer_epoch
            or (first.base_sequence - header.base_sequence) & SEQUENCE_MASK <= AHEAD_MAX
        ):
            self._first[key] = _RejectedBatch(header.producer_epoch, header.base_sequence, error, now)
        if len(self._first) > _PRODUCERS_MAX:
            del self._first[next(iter(self._first))]

    def record_append(self, producer_partition: ProducerPartition, header: BatchHeader) -> None:
        """A batch was appended: earlier rejected ones were retried, or never will be."""
        self._first.pop((producer_partition, header.producer_id), None)


def gap_in_new_term(error: HeadraceError, header: BatchHeader, partition: Partition, now: float) -> HeadraceError:
    """Return a retriable error instead of a gap while the leadership of this broker is new. An epoch above 0 had an
    earlier leader."""
    is_new = partition.leader_epoch > 0 and now - partition.led_since < GAP_TIMEOUT_SECONDS
    if is_new and isinstance(error, OutOfOrderSequence) and partition.state.producers.is_ahead(header):
        return NotLeader(f"{partition.topic}-{partition.index} has a new leader; an earlier batch is still missing")
    return error
