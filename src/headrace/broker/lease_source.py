"""The partition whose messages are leased: asked for with every request, and mostly the same.

It also knows below which offset something can be settled. A log may have lost its end: with the power, where its topic
does not wait for the disk, or by an election that an operator forced. What comes at those offsets next is not what was
settled there, and must be delivered.
"""

from __future__ import annotations

from uuid import UUID

from headrace.broker.catalogue import Catalogue
from headrace.broker.partition import Partition
from headrace.model.errors import HeadraceError, UnknownTopicOrPartition

Served = dict[tuple[str, int], tuple[int, int]]
"""By topic and partition: in which epoch it was led when it was last served here, and where its log ended then."""


class LeaseSource:
    __slots__ = ("_catalogue", "_known", "_owner_id", "_place", "_served")

    def __init__(self, catalogue: Catalogue, topic: str, index: int, owner_id: UUID, served: Served) -> None:
        self._catalogue = catalogue
        self._place = topic, index
        self._owner_id = owner_id
        self._served = served
        self._known: Partition | None = None

    def find(self) -> Partition:
        """Raises unless it is led here."""
        partition = self._catalogue.partition(*self._place)
        if partition is not self._known:
            if partition.topic_id != self._owner_id:
                raise UnknownTopicOrPartition(f"topic {self._place[0]} was recreated")
            self._known = partition
        return partition

    def end_before(self, partition: Partition, reconciled_epoch: int) -> int:
        """Where the log ended for what was settled until now: its end when the present leader epoch began, or when it
        was last served in this epoch. If more than one epoch began since the state was reconciled, the end of
        `reconciled_epoch`: the log may have lost its end in any of them."""
        epoch, end_offset = self._served.get(self._place, (-1, 0))
        end_offset = max(partition.epoch_start, end_offset if epoch == partition.leader_epoch else 0)
        known, end_of_epoch = partition.log.epochs.end_offset_for(reconciled_epoch, partition.log.end_offset)
        return min(end_offset, end_of_epoch) if known >= 0 else end_offset

    def served(self) -> None:
        """It is not served any more; perhaps it will be again, in the same lead."""
        try:
            partition = self.find()
        except HeadraceError:
            self._served.pop(self._place, None)
        else:
            self._served[self._place] = partition.leader_epoch, partition.log.end_offset
