"""Settle (10002, our own): say what became of leased messages. Answered when it is committed.

Each item stands for itself: one that is refused (its lease is over, or somebody else's) changes nothing, and the others
count. `how` has Kafka's numbers: 0 gap (there is no message), 1 ack, 2 nack, 3 reject, 4 extend; and 5 release, which
is ours: the message was delivered to nobody, it is ready at once, and the lease does not count.
"""

from __future__ import annotations

from headrace.wire.schema import INT8, INT16, INT32, INT64, STRING, array, message, part, wire


@part
class SettleItem:
    """Offsets from `first` to `last`, both included. `attempt` -1: whichever it is now. `delay_ms` is for a nack, -1
    leaves it to the subscription; `lease_ms` for an extension, likewise; `reason` for a nack or reject."""

    first: int = wire(INT64)
    last: int = wire(INT64)
    attempt: int = wire(INT32, default=-1)
    how: int = wire(INT8, default=1)
    delay_ms: int = wire(INT64, default=-1)
    lease_ms: int = wire(INT32, default=-1)
    reason: str | None = wire(STRING, nullable=0, default=None)


@part
class SettlePartition:
    partition_index: int = wire(INT32)
    lease_epoch: int = wire(INT32)
    items: list[SettleItem] = wire(array(SettleItem))


@part
class SettleTopic:
    name: str = wire(STRING)
    partitions: list[SettlePartition] = wire(array(SettlePartition))


@message(versions=(0, 0), flexible_since=0)
class SettleRequest:
    """`member` "": whoever holds the lease; with that, epoch -1 is the present one. So, and with attempt -1, a message
    is settled by its id alone, if anybody has leased it: also under the hands of whoever it was delivered to again."""

    subscription: str = wire(STRING)
    member: str = wire(STRING)
    topics: list[SettleTopic] = wire(array(SettleTopic))


@part
class RefusedItem:
    """`index` counts the items of the request's partition from 0."""

    index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


@part
class SettlePartitionAnswer:
    """An error here is one of all items. Items that are not among the refused have been settled."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    refused: list[RefusedItem] = wire(array(RefusedItem))


@part
class SettleTopicAnswer:
    name: str = wire(STRING)
    partitions: list[SettlePartitionAnswer] = wire(array(SettlePartitionAnswer))


@message(versions=(0, 0), flexible_since=0)
class SettleResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    topics: list[SettleTopicAnswer] = wire(array(SettleTopicAnswer))
