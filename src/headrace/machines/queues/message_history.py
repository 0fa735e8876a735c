"""The last event and the delivery attempts of single messages, from the events of an acks log. Pure.

- An event of a settlement does not contain the number of attempts. It follows from the failures before it: those
  events, and the failures in snapshots, contain the number of failed attempts.
- If the beginning of the log was deleted, the number is unknown until a failure of the message, or a snapshot or the
  creation of the subscription, is read.
- A release does not count as an attempt, nor does a lease that ended with the leadership of its broker: neither is in
  the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from headrace.wire.state_records.acks_records import (
    AcksEvent,
    Created,
    Deleted,
    Failed,
    Redriven,
    Settled,
    SnapshotEvent,
    Sought,
)

UNKNOWN_ATTEMPTS = 0
_DELIVERED = {"ack", "reject", "discarded"}
"""How a member settles a message, or its last attempt ends, without an event of the failure."""


class MessageEvent(NamedTuple):
    """`attempts` is the number of delivery attempts up to the event, or `UNKNOWN_ATTEMPTS`. It is also 0 for a message
    that was settled without delivery."""

    event: Settled | Failed
    attempts: int


class _Failure(NamedTuple):
    attempts: int
    is_dying: bool


_NO_FAILURE = _Failure(0, is_dying=False)


class MessageHistory:
    """`offsets` are the messages. `is_beginning`: the events begin with the first one of the log."""

    def __init__(self, offsets: Collection[int], *, is_beginning: bool) -> None:
        self.last_events: dict[tuple[str, int], MessageEvent] = {}
        self._offsets = offsets
        self._is_beginning = is_beginning
        self._known: set[str] = set()  # subscriptions whose failures have all been read
        self._failures: dict[tuple[str, int], _Failure] = {}

    def take(self, name: str, event: AcksEvent) -> None:
        match event:
            case Failed():
                for offset in self._within([(event.first, event.last)]):
                    self._failures[name, offset] = _Failure(event.attempts, event.is_dying)
                    self.last_events[name, offset] = MessageEvent(event, event.attempts)
            case Settled():
                for offset in self._within(event.ranges):
                    self.last_events[name, offset] = MessageEvent(event, self._attempts(name, offset, event))
            case SnapshotEvent():
                if event.part == 1:  # the other parts follow before any other event of the subscription
                    self._known.add(name)
                for first, last, attempts, _, _, is_dying in event.failed:
                    for offset in self._within([(first, last)]):
                        self._failures[name, offset] = _Failure(attempts, is_dying)
            case Redriven():
                for offset in self._within([(offset, offset) for offset, _ in event.messages]):
                    self._failures[name, offset] = _NO_FAILURE
                    self.last_events.pop((name, offset), None)
            case Created() | Sought() | Deleted():
                self._known.add(name)
                for offset in self._offsets:
                    self._failures.pop((name, offset), None)
                    self.last_events.pop((name, offset), None)

    def _attempts(self, name: str, offset: int, event: Settled) -> int:
        failure = self._failures.get((name, offset))
        if failure is None:
            if not self._is_beginning and name not in self._known:
                return UNKNOWN_ATTEMPTS
            failure = _NO_FAILURE
        return failure.attempts + (event.how in _DELIVERED and not failure.is_dying)

    def _within(self, ranges: Sequence[tuple[int, int]]) -> Iterator[int]:
        for first, last in ranges:
            yield from (offset for offset in self._offsets if first <= offset <= last)
