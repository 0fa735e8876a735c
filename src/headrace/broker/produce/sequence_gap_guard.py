"""What was refused of an idempotent producer, so that its next batches wait for it and are not told of a gap.

A producer has several batches under way. When the first is refused for a while (the lead has not begun here yet, no
room on the disk, too few replicas) and the second comes when it could be taken, its sequence has a gap. That is no
disorder of the producer's: it will send the first again. Told of a gap, librdkafka begins a new epoch for all that it
writes anywhere, and what was taken in another partition and not yet answered then lies in that log twice. A producer
that is new to the partition fares worse: its second batch would be taken as the first, and the first never. So what
follows is refused for the reason of the first, until that has come again, or a while has passed.

The previous leader may have rejected the first batch when its leadership ended, while a client that knows the new
leader already has sent the second one there. So a new leader answers a gap with a retriable error for a while, too.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from headrace.broker.partition import Partition
from headrace.machines.produce.producer_states import AHEAD_MAX, SEQUENCE_MASK, ProducerStates
from headrace.model.errors import CorruptMessage, HeadraceError, NotLeader, OutOfOrderSequence
from headrace.wire.batches.batch import BatchHeader

GAP_TIMEOUT_SECONDS = 30.0  # a producer that still wants its first batch to be taken has sent it again by then
_PRODUCERS_MAX = 10_000

ProducerPartition = tuple[str, UUID, int]
"""A partition as a request names it: by the topic's name or its id."""


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
        self, place: ProducerPartition, header: BatchHeader, producers: ProducerStates, now: float
    ) -> None:
        """Raise why an earlier batch of this producer was refused, if it was, and has not come again, here or to
        another leader meanwhile."""
        key = place, header.producer_id
        first = self._first.get(key)
        if first is None:
            return
        is_ahead = 0 < (header.base_sequence - first.base_sequence) & SEQUENCE_MASK <= AHEAD_MAX
        if first.producer_epoch != header.producer_epoch or now - first.at > GAP_TIMEOUT_SECONDS:
            del self._first[key]
        elif is_ahead and not producers.is_next_in_sequence(header):
            raise first.error

    def note(self, place: ProducerPartition, header: BatchHeader, error: HeadraceError, now: float) -> None:
        """A batch was not taken."""
        if header.producer_id < 0 or not error.retriable or isinstance(error, CorruptMessage):
            return
        key = place, header.producer_id
        first = self._first.get(key)
        if (
            first is None
            or first.producer_epoch != header.producer_epoch
            or (first.base_sequence - header.base_sequence) & SEQUENCE_MASK <= AHEAD_MAX
        ):
            self._first[key] = _RejectedBatch(header.producer_epoch, header.base_sequence, error, now)
        if len(self._first) > _PRODUCERS_MAX:
            del self._first[next(iter(self._first))]

    def taken(self, place: ProducerPartition, header: BatchHeader) -> None:
        """A batch was taken: what was refused before it has come again, or never will."""
        self._first.pop((place, header.producer_id), None)


def gap_in_new_term(error: HeadraceError, header: BatchHeader, partition: Partition, now: float) -> HeadraceError:
    """Return a retriable error instead of a gap while the leadership of this broker is new. An epoch above 0 had an
    earlier leader."""
    is_new = partition.leader_epoch > 0 and now - partition.led_since < GAP_TIMEOUT_SECONDS
    if is_new and isinstance(error, OutOfOrderSequence) and partition.state.producers.is_ahead(header):
        return NotLeader(f"{partition.topic}-{partition.index} has a new leader; an earlier batch is still missing")
    return error
