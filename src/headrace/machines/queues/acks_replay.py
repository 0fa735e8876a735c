"""Rebuild the subscriptions of a partition from the events of its acks log. Pure.

- A replay may begin anywhere. Its state is incomplete until it has read one complete snapshot, unless it begins at the
  beginning of the log; after that every event counts.
- A snapshot with a missing part is ignored, because its writer died. A snapshot that is read when the state is complete
  changes nothing.
- Events have the time of the leader that wrote them. If its clock was ahead, retries would wait for the
  difference as well, so such events are moved to the present: a wait lasts no longer than intended (I35).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.machines.queues.subscription import PartitionSubscription
from headrace.wire.state_records.acks_records import AcksEvent, Created, Deleted, Failed, Reconciled, SnapshotEvent

MakeSubscription = Callable[[str], PartitionSubscription]


class AcksReplay:
    """`is_complete`: `subscriptions` are all subscriptions, as of the last event. `snapshot_offset` is the start of the
    last complete snapshot: the log below it is history. `epoch` is the leader epoch of the topic's partition for which
    the subscriptions were last reconciled. `now_ms` is the time of this leader; without it, events keep their times."""

    def __init__(self, make: MakeSubscription, *, is_beginning: bool, now_ms: int | None = None) -> None:
        self.subscriptions: dict[str, PartitionSubscription] = {}
        self.is_complete = is_beginning
        self.snapshot_offset: int | None = None
        self.event_count = 0
        self.epoch = -1
        self._make = make
        self._now_ms = now_ms
        self._snapshot: _PartialSnapshot | None = None

    def take(self, offset: int, name: str, event: AcksEvent) -> None:
        self.event_count += 1
        if self._now_ms is not None and event.at > self._now_ms:
            event = _rescheduled(event, event.at - self._now_ms)
        if isinstance(event, SnapshotEvent):
            self._add_snapshot_part(offset, name, event)
        elif isinstance(event, Reconciled):
            self.epoch = event.epoch
        elif isinstance(event, Created):
            self.subscriptions[name] = subscription = self._make(name)
            subscription.apply(event)
        elif isinstance(event, Deleted):
            self.subscriptions.pop(name, None)
        elif name in self.subscriptions:
            self.subscriptions[name].apply(event)

    def _add_snapshot_part(self, offset: int, name: str, event: SnapshotEvent) -> None:
        snapshot = self._snapshot
        if snapshot is None or snapshot.id != event.id:
            snapshot = self._snapshot = _PartialSnapshot(offset, event.id)
        snapshot.add(name, event)
        if not snapshot.is_complete:
            return
        self.snapshot_offset = snapshot.offset
        self._snapshot = None
        if not self.is_complete:
            self.is_complete = True
            self.epoch = max(self.epoch, event.epoch)
            self.subscriptions = {name: self._make(name) for name in snapshot.parts}
            for subscription, parts in zip(self.subscriptions.values(), snapshot.parts.values(), strict=True):
                subscription.restore(parts)


def _rescheduled(event: AcksEvent, ahead_ms: int) -> AcksEvent:
    """Move an event of a leader whose clock was ahead to the present."""
    at = event.at - ahead_ms
    if isinstance(event, Failed):
        return msgspec.structs.replace(event, at=at, due_ms=event.due_ms - ahead_ms)
    if isinstance(event, SnapshotEvent):
        failed = [(*one[:3], one[3] - ahead_ms, *one[4:]) for one in event.failed]
        return msgspec.structs.replace(event, at=at, failed=failed)
    return event


class _PartialSnapshot(msgspec.Struct):
    """Collects the parts of one snapshot, which are consecutive in the log and ordered for each subscription."""

    offset: int
    id: int
    parts: dict[str, list[SnapshotEvent]] = msgspec.field(default_factory=dict)
    subscriptions: int = 0
    open: int = 0  # subscriptions that lack a part

    @property
    def is_complete(self) -> bool:
        return not self.open and len(self.parts) == self.subscriptions

    def add(self, name: str, event: SnapshotEvent) -> None:
        parts = self.parts.setdefault(name, [])
        if event.part != len(parts) + 1:
            # An earlier part precedes the start of this replay.
            self.open = 1 << 32
            return
        if event.part == 1:
            self.open += 1
        parts.append(event)
        if event.part == event.parts:
            self.open -= 1
        self.subscriptions = event.subscriptions
