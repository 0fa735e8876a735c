"""Lease (10001, our own): take messages of a subscription for a while, waiting up to `max_wait_ms` for some.

To the leader of the partitions. The answer has whole batches, as Fetch has them; leased are only the offsets that it
names. A receipt is an offset with its attempt and the partition's `lease_epoch`: Settle wants all three. Partitions
that gave nothing are left out of the answer.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT16, INT32, INT64, RECORDS, STRING, Chunk, array, message, part, wire


@part
class LeaseTopic:
    name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@message(versions=(0, 0), flexible_since=0)
class LeaseRequest:
    """`member` is whatever the client calls itself: a lease is settled by whoever took it. -1 as `lease_ms` leaves the
    time to the subscription. A subscription that is missing is made, unless `must_exist`. 0 as `max_messages`: the
    member leaves, and is given nothing any more."""

    subscription: str = wire(STRING)
    member: str = wire(STRING)
    max_wait_ms: int = wire(INT32)
    max_messages: int = wire(INT32, default=100)
    max_bytes: int = wire(INT32, default=1 << 20)
    lease_ms: int = wire(INT32, default=-1)
    topics: list[LeaseTopic] = wire(array(LeaseTopic))
    must_exist: bool = wire(BOOL, tag=0, default=False)


@part
class LeasedRange:
    """Offsets from `first` to `last`, both included, and how often they have been delivered with this time."""

    first: int = wire(INT64)
    last: int = wire(INT64)
    attempt: int = wire(INT32)


@part
class LeasePartitionAnswer:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    lease_epoch: int = wire(INT32, default=-1)
    leased_until_ms: int = wire(INT64, default=-1)
    leased: list[LeasedRange] = wire(array(LeasedRange))
    records: Chunk | None = wire(RECORDS, nullable=0)


@part
class LeaseTopicAnswer:
    name: str = wire(STRING)
    partitions: list[LeasePartitionAnswer] = wire(array(LeasePartitionAnswer))


@message(versions=(0, 0), flexible_since=0)
class LeaseResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    topics: list[LeaseTopicAnswer] = wire(array(LeaseTopicAnswer))
