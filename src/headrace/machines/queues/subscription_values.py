"""Values of the subscription state machine: ranges, grants, settlements, and states of messages."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec


class Range(NamedTuple):
    """Offsets from `first` to `last` inclusive, as in Kafka's AcquiredRecords."""

    first: int
    last: int


class GrantedRange(NamedTuple):
    """A range that was leased; `attempt` is 1 for the first delivery."""

    first: int
    last: int
    attempt: int


class ClassifiedMessage(msgspec.Struct, frozen=True, gc=False):
    """The properties of a message that affect its delivery, if the subscription has priorities, key order, a filter or
    expiry."""

    offset: int
    priority: int
    key: bytes | None
    arrived_ms: int
    expires_ms: int | None
    matches: bool


class UndeliverableMessage(NamedTuple):
    """A message that reached the delivery limit or was rejected, and becomes a dead letter. `redriven`: how many times
    it was redriven before."""

    offset: int
    attempts: int
    reason: str
    redriven: int = 0


class Ack(NamedTuple):
    """Processed; never deliver again."""


class OffsetGap(NamedTuple):
    """There is no message at this offset."""


class Nack(NamedTuple):
    """Failed; deliver again after `delay_ms`, or after the configured back-off if that is None (Kafka's Release)."""

    delay_ms: int | None = None
    reason: str = ""


class Release(NamedTuple):
    """Not delivered: ready again at once, and the lease does not count as a delivery attempt."""


class Reject(NamedTuple):
    """Failed for good: becomes a dead letter."""

    reason: str = ""


Settlement: TypeAlias = Ack | OffsetGap | Nack | Reject | Release


class DeliveryState(NamedTuple):
    """The state of one message. `attempts` includes the current lease."""

    state: Literal["ready", "leased", "waiting", "dying", "settled"]
    attempts: int = 0
    member: str = ""
    until_ms: int | None = None  # when the lease ends, or the retry is due
    reason: str = ""  # of the last failure


class SubscriptionCounts(NamedTuple):
    """Numbers of messages. The backlog is all unsettled messages, including leased, waiting and dying ones."""

    backlog: int
    leased: int
    waiting: int
    dying: int
    settled_above_floor: int
