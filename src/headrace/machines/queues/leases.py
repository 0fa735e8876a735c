"""Who works on which messages of a subscription, until when. Pure, and not kept in any log: a failover returns them.

A lease is a range. It holds while the time is before its end, not a millisecond longer: what comes at its end or
later is refused, whether or not the lease was taken back by then. So no two members can ever settle the same
delivery.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.machines.queues.delivery_failures import Deadlines
from headrace.machines.queues.offset_ranges import IntervalMap, OffsetInterval
from headrace.machines.queues.subscription_values import GrantedRange
from headrace.model.errors import InvalidRecordState

UNKNOWN = -1


class Lease(OffsetInterval):
    """`leased_ms` is when it began, `published_ms` when its messages were published, if somebody has looked."""

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

    def over(self, now_ms: int) -> list[Lease]:
        return [self._by_last[last] for last in self.ends.over(now_ms)]

    def of_member(self, member: str) -> list[Lease]:
        return [lease for lease in self._by_last.values() if lease.member == member]

    def held(self, first: int, last: int, member: str | None, attempt: int | None, now_ms: int) -> list[Lease]:
        """The leases on this range, which may reach beyond it.

        Raises `InvalidRecordState` unless every offset of it is leased, by the member and in the attempt if those are
        given.
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
    """What they delivered, ascending; neighbours as one if they are joined."""
    found: list[GrantedRange] = []
    for first, last, attempt in sorted((lease.first, lease.last, lease.attempt) for lease in leases):
        before = found[-1] if found and are_joined else None
        if before is not None and first == before.last + 1 and attempt == before.attempt:
            found[-1] = before._replace(last=last)
        else:
            found.append(GrantedRange(first, last, attempt))
    return found
