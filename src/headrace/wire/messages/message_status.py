"""MessageStatus (10005, our own): what became of messages, for each subscription. To the partition's leader.

`state` is ready, leased, waiting (for a retry), dying (for its dead letter) or settled. How and when a message was
settled or has last failed is looked up in the acks log if `with_history` asks for it, and told as long as that has it.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT16, INT32, INT64, STRING, array, message, part, wire


@message(versions=(0, 0), flexible_since=0)
class MessageStatusRequest:
    topic: str = wire(STRING)
    partition_index: int = wire(INT32)
    offsets: list[int] = wire(array(INT64))
    subscriptions: list[str] | None = wire(array(STRING), nullable=0, default=None)
    with_history: bool = wire(BOOL, default=True)


@part
class SubscriptionStatus:
    """`attempts` are the deliveries that are known of. `at_ms` says when it was settled or has last failed, `until_ms`
    until when it is leased or waits; -1 if there is no such time. `reason` is that of the last failure."""

    offset: int = wire(INT64)
    subscription: str = wire(STRING)
    state: str = wire(STRING)
    attempts: int = wire(INT32)
    how: str | None = wire(STRING, nullable=0, default=None)
    at_ms: int = wire(INT64, default=-1)
    until_ms: int = wire(INT64, default=-1)
    member: str | None = wire(STRING, nullable=0, default=None)
    reason: str | None = wire(STRING, nullable=0, default=None)


@message(versions=(0, 0), flexible_since=0)
class MessageStatusResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    statuses: list[SubscriptionStatus] = wire(array(SubscriptionStatus))
