"""What a subscription says and is told: ranges, grants, ways to settle, and how a message stands. Plain values."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec


class Range(NamedTuple):
    """Offsets from `first` to `last`, both included, as in Kafka's AcquiredRecords."""

    first: int
    last: int


class GrantedRange(NamedTuple):
    """A range that was leased; `attempt` is 1 for the first delivery."""

    first: int
    last: int
    attempt: int


class ClassifiedMessage(msgspec.Struct, frozen=True, gc=False):
    """What delivery depends on in a message, for subscriptions whose configuration says that it does."""

    offset: int
    priority: int
    key: bytes | None
    arrived_ms: int
    expires_ms: int | None
    matches: bool


class UndeliverableMessage(NamedTuple):
    """A message that reached the limit of deliveries or was rejected: it is kept as a dead letter next."""

    offset: int
    attempts: int
    reason: str


class Ack(NamedTuple):
    """Done."""


class OffsetGap(NamedTuple):
    """There is no message at this offset."""


class Nack(NamedTuple):
    """Again: after `delay_ms`, or, if that is None, after the back-off that is configured (Kafka's Release)."""

    delay_ms: int | None = None
    reason: str = ""


class Release(NamedTuple):
    """It was delivered to nobody: it is ready at once, and the lease does not count."""


class Reject(NamedTuple):
    """Never again: a dead letter."""

    reason: str = ""


Settlement: TypeAlias = Ack | OffsetGap | Nack | Reject | Release


class DeliveryState(NamedTuple):
    """How a message stands. `attempts` is how often it was delivered, the lease that it is in included."""

    state: Literal["ready", "leased", "waiting", "dying", "settled"]
    attempts: int = 0
    member: str = ""
    until_ms: int | None = None  # when the lease ends, or the retry is due
    reason: str = ""  # of the last failure


class SubscriptionCounts(NamedTuple):
    """In messages. The backlog is everything that is not settled: what is leased, waits or dies is part of it."""

    backlog: int
    leased: int
    waiting: int
    dying: int
    settled_above_floor: int
