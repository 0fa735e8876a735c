"""From the events of an acks log to the subscriptions of its partition. Pure.

A replay may begin anywhere. It knows nothing until it has come past one whole snapshot, unless it begins where the log
itself began; from then on every event counts. A snapshot of which a part is missing (its writer died) counts for
nothing, and one that is found when all is known already says nothing new.

Events bear the time of the leader that wrote them. If its clock was ahead of ours, retries would wait for the
difference as well: such events are moved to the present, so that a wait lasts no longer than it was to last (I35).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.machines.queues.subscription import PartitionSubscription
from headrace.wire.state_records.acks_records import AcksEvent, Created, Deleted, Failed, Reconciled, SnapshotEvent

MakeSubscription = Callable[[str], PartitionSubscription]


class AcksReplay:
    """`session_valid`: `subscriptions` are all that there are, as of the last event. `snapshot_offset` is where the
    last whole snapshot begins: what lies below it in the log is history. `epoch` is the leader epoch of the topic's
    partition for which the subscriptions were last reconciled. `now_ms` is the time of the leader that reads; without
    it, events keep their times."""

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
        """The record at this offset of the acks log."""
        self.event_count += 1
        if self._now_ms is not None and event.at > self._now_ms:
            event = _rescheduled(event, event.at - self._now_ms)
        if isinstance(event, SnapshotEvent):
            self._take_part(offset, name, event)
        elif isinstance(event, Reconciled):
            self.epoch = event.epoch
        elif isinstance(event, Created):
            self.subscriptions[name] = subscription = self._make(name)
            subscription.apply(event)
        elif isinstance(event, Deleted):
            self.subscriptions.pop(name, None)
        elif name in self.subscriptions:
            self.subscriptions[name].apply(event)

    def _take_part(self, offset: int, name: str, event: SnapshotEvent) -> None:
        snapshot = self._snapshot
        if snapshot is None or snapshot.id != event.id:
            snapshot = self._snapshot = _PartialSnapshot(offset, event.id)
        snapshot.add(name, event)
        if not snapshot.is_whole:
            return
        self.snapshot_offset = snapshot.offset
        self._snapshot = None
        if not self.is_complete:
            self.is_complete = True
            self.epoch = max(self.epoch, event.epoch)
            self.subscriptions = {name: self._rebuilt(name, parts) for name, parts in snapshot.parts.items()}

    def _rebuilt(self, name: str, parts: list[SnapshotEvent]) -> PartitionSubscription:
        subscription = self._make(name)
        for part in parts:
            subscription.apply(part)
        return subscription


def _rescheduled(event: AcksEvent, ahead_ms: int) -> AcksEvent:
    """An event of a leader whose clock was ahead of ours by so much."""
    at = event.at - ahead_ms
    if isinstance(event, Failed):
        return msgspec.structs.replace(event, at=at, due_ms=event.due_ms - ahead_ms)
    if isinstance(event, SnapshotEvent):
        failed = [(*one[:3], one[3] - ahead_ms, *one[4:]) for one in event.failed]
        return msgspec.structs.replace(event, at=at, failed=failed)
    return event


class _PartialSnapshot:
    """Parts stand in the log one behind the other, those of a subscription in their order."""

    __slots__ = ("_open", "_subscriptions", "id", "offset", "parts")

    def __init__(self, offset: int, snapshot_id: int) -> None:
        self.offset = offset
        self.id = snapshot_id
        self.parts: dict[str, list[SnapshotEvent]] = {}
        self._subscriptions = 0
        self._open = 0  # of those seen so far, how many lack a part

    @property
    def is_whole(self) -> bool:
        return not self._open and len(self.parts) == self._subscriptions

    def add(self, name: str, event: SnapshotEvent) -> None:
        parts = self.parts.setdefault(name, [])
        if event.part != len(parts) + 1:
            # One of its parts lies before the place where this replay began.
            self._open = 1 << 32
            return
        if event.part == 1:
            self._open += 1
        parts.append(event)
        if event.part == event.parts:
            self._open -= 1
        self._subscriptions = event.subscriptions
