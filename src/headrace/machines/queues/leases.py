"""The leases of a subscription: which member works on which messages, until when. Pure.

- Leases are in no log: after a failover their messages are delivered again.
- A lease is valid strictly before its end. A settlement at its end or later is rejected, whether or not the lease was
  removed by then, so two members can never settle the same delivery.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.machines.queues.delivery_failures import Deadlines
from headrace.machines.queues.offset_ranges import IntervalMap, OffsetInterval
from headrace.machines.queues.subscription_values import GrantedRange
from headrace.model.errors import InvalidRecordState

UNKNOWN = -1


class Lease(OffsetInterval):
    """`leased_ms` is the start of the lease, `published_ms` the publish time of its messages, if it was read."""

    member: str
    attempt: int
    until_ms: int
    leased_ms: int = 0
    published_ms: int = UNKNOWN


class Leases(IntervalMap[Lease]):
    __slots__ = ("ends",)

    def __init__(self) -> None:
        super().__init__()
        self.ends = Deadlines(self._end_of)

    def put(self, span: Lease) -> None:
        super().put(span)
        self.ends.set(span.until_ms, span.last)

    def expired(self, now_ms: int) -> list[Lease]:
        return [self._by_last[last] for last in self.ends.passed(now_ms)]

    def held(self, first: int, last: int, member: str | None, attempt: int | None, now_ms: int) -> list[Lease]:
        """Return the leases that overlap with the range, not clipped.

        Raises `InvalidRecordState` unless every offset of the range is leased, and by this member and in this attempt
        if they are given.
        """
        if first > last:
            raise InvalidRecordState(f"{first} to {last} is no range of messages")
        leases = self.overlapping(first, last)
        offset = first
        for lease in leases:
            if lease.first > offset:
                break
            if member is not None and lease.member != member:
                raise InvalidRecordState(f"message {offset} is leased by another member than {member!r}")
            if lease.until_ms <= now_ms:
                raise InvalidRecordState(
                    f"the lease of message {offset} ended {now_ms - lease.until_ms} ms ago; it is delivered again"
                )
            if attempt is not None and lease.attempt != attempt:
                raise InvalidRecordState(
                    f"message {offset} is leased in its attempt {lease.attempt}, not any more in attempt {attempt}"
                )
            offset = lease.last + 1
        if offset <= last:
            raise InvalidRecordState(f"message {offset} is not leased; it may have been settled or taken back")
        return leases

    def _end_of(self, last: int) -> int | None:
        lease = self._by_last.get(last)
        return None if lease is None else lease.until_ms


def granted_ranges(leases: Iterable[Lease], *, are_joined: bool) -> list[GrantedRange]:
    """Return the leased ranges with their attempts, ascending; merge adjacent ones if `are_joined`."""
    found: list[GrantedRange] = []
    for first, last, attempt in sorted((lease.first, lease.last, lease.attempt) for lease in leases):
        before = found[-1] if found and are_joined else None
        if before is not None and first == before.last + 1 and attempt == before.attempt:
            found[-1] = before._replace(last=last)
        else:
            found.append(GrantedRange(first, last, attempt))
    return found
