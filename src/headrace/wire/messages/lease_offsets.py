"""LeaseOffsets (10008, our own): lease single messages of a subscription by their offsets. To the partition's leader.

For whoever has read the messages already and has chosen among them, such as dead letters that are sent back. What is
settled, or leased by somebody else, is left out of the answer; nothing is waited for. Settle (10002) ends the leases.
"""

from __future__ import annotations

from headrace.wire.messages.lease import LeasedRange
from headrace.wire.schema import INT16, INT32, INT64, STRING, array, message, part, wire


@part
class OffsetRange:
    """Offsets from `first` to `last`, both included."""

    first: int = wire(INT64)
    last: int = wire(INT64)


@message(versions=(0, 0), flexible_since=0)
class LeaseOffsetsRequest:
    """-1 as `lease_ms` leaves the time to the subscription."""

    subscription: str = wire(STRING)
    member: str = wire(STRING)
    topic: str = wire(STRING)
    partition_index: int = wire(INT32)
    lease_ms: int = wire(INT32, default=-1)
    wanted: list[OffsetRange] = wire(array(OffsetRange))


@message(versions=(0, 0), flexible_since=0)
class LeaseOffsetsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    lease_epoch: int = wire(INT32, default=-1)
    leased_until_ms: int = wire(INT64, default=-1)
    leased: list[LeasedRange] = wire(array(LeasedRange))
