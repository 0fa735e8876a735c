"""What an acks log says of one subscription in one partition, event by event. Pure.

A log that was trimmed begins with a snapshot: what it has as settled counts as settled, though nobody can tell how. A
message counts as settled twice only if it was worked on twice: that it expired or is a gap may be said of any range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pyroaring import BitMap64

from headrace.machines.settled import present_ranges
from headrace.machines.subscription_answers import Range
from headrace.wire.acks_records import Created, Deleted, Event, Failed, How, Settled, SnapshotEvent, Sought

WORKED: tuple[How, ...] = ("ack", "reject", "dead", "discarded")
"""Ways to settle a message that was delivered."""

_NONE = BitMap64()


class Ledger:
    """`is_known`: from here on every event counts. Below the floor nothing concerns the subscription.

    A seek makes it forget how messages were settled and failed, but not what was settled `twice` and what died.
    """

    def __init__(self) -> None:
        self.is_known = False
        self.exists = False
        self.floor = 0
        self.settled = BitMap64()
        self.by_how: dict[How, BitMap64] = {}
        self.removed = BitMap64()  # by retention, before they were settled
        self.expired = BitMap64()  # otherwise, before they were settled
        self.twice = BitMap64()
        self.deaths: Counter[int] = Counter()
        self.failures: list[Failed] = []
        self._parts: list[SnapshotEvent] = []

    def take(self, event: Event) -> None:
        match event:
            case SnapshotEvent():
                self._take_part(event)
            case Created() | Sought():
                self.is_known = self.exists = True
                self._begin(event.floor)
            case Deleted():
                self.exists = False
                self._begin(0)
            case Settled():
                for first, last in event.ranges:
                    if event.how == "expired":
                        self._expire(self.removed if event.by_retention else self.expired, first, last)
                    self._settle(event.how, first, last)
            case Failed():
                self.failures.append(event)

    def newly_settled(self, event: Settled) -> int:
        """How many messages the event settles that are not, if it is taken next."""
        return sum(
            last + 1 - max(first, self.floor) - self.settled.range_cardinality(max(first, self.floor), last + 1)
            for first, last in event.ranges
            if last >= self.floor
        )

    def settled_count(self, start: int, end: int) -> int:
        """How many of these offsets are settled or below the floor."""
        bottom = min(max(self.floor, start), end)
        return bottom - start + int(self.settled.range_cardinality(bottom, end))

    def worked_otherwise(self, offset: int) -> How | None:
        """How a message was settled that did not die."""
        return next((how for how, offsets in self.by_how.items() if how != "dead" and offset in offsets), None)

    def _expire(self, unsettled: BitMap64, first: int, last: int) -> None:
        found = BitMap64()
        found.add_range(max(first, self.floor), last + 1)
        unsettled |= found - self.settled

    def _settle(self, how: How, first: int, last: int) -> None:
        if how in WORKED:
            for other in WORKED:
                for again in present_ranges(self.by_how.get(other, _NONE), first, last + 1):
                    self.twice.add_range(again.first, again.last + 1)
        if how == "dead":
            self.deaths.update(range(first, last + 1))
        self.by_how.setdefault(how, BitMap64()).add_range(first, last + 1)
        self.settled.add_range(first, last + 1)

    def _begin(self, floor: int) -> None:
        self.floor = floor
        self.settled = BitMap64()
        self.by_how = {}
        self.removed = BitMap64()
        self.expired = BitMap64()
        self.failures = []

    def _take_part(self, part: SnapshotEvent) -> None:
        if self.is_known:
            return
        if part.part == 1 or (self._parts and self._parts[0].id != part.id):
            self._parts = []
        self._parts.append(part)
        if len(self._parts) == part.parts:
            self.is_known = self.exists = True
            self._begin(part.floor)
            for one in self._parts:
                if one.settled:
                    self.settled |= BitMap64.deserialize(one.settled)


def runs(offsets: BitMap64, start: int = 0) -> Iterator[Range]:
    """Each run of offsets from `start` on."""
    return present_ranges(offsets, start, offsets.max() + 1) if offsets else iter(())
