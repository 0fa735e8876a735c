"""What was refused of an idempotent producer, so that its next batches are not told that they are out of order.

A producer has several batches under way. When the first is refused for a while (no room on the disk, too few replicas)
and the second comes when it could be taken, its sequence has a gap. That is no disorder of the producer's: it will send
the first again. Told of a gap, librdkafka begins a new epoch and numbers everything anew, also what was taken and not
yet answered, which then lies in the log twice. So the second is refused for the reason of the first.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.partition import Partition
from headrace.model.errors import HeadraceError, OutOfOrderSequence
from headrace.wire.batch import BatchHeader

_PRODUCERS_MAX = 10_000


class _Refused(NamedTuple):
    producer_epoch: int
    base_sequence: int
    error: HeadraceError


class Refusals:
    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[tuple[Partition, int], _Refused] = {}

    def told(self, partition: Partition, header: BatchHeader, error: HeadraceError) -> HeadraceError:
        """What to answer a producer whose batch was not taken."""
        key = partition, header.producer_id
        first = self._first.get(key)
        if first is not None and first.producer_epoch != header.producer_epoch:
            del self._first[key]
            first = None
        if isinstance(error, OutOfOrderSequence):
            return error if first is None or header.base_sequence <= first.base_sequence else first.error
        if error.retriable and header.producer_id >= 0:
            if first is None or header.base_sequence < first.base_sequence:
                self._first[key] = _Refused(header.producer_epoch, header.base_sequence, error)
            if len(self._first) > _PRODUCERS_MAX:
                del self._first[next(iter(self._first))]
        return error

    def taken(self, partition: Partition, header: BatchHeader) -> None:
        """A batch was taken: what was refused before it has come again, or never will."""
        if self._first:
            self._first.pop((partition, header.producer_id), None)
