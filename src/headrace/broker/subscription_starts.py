"""Where a subscription begins: at the start, at the end, or at a time."""

from __future__ import annotations

from headrace.broker.partition import Partition
from headrace.model.errors import OffsetNotAvailable
from headrace.model.subscription_configs import SubscriptionConfig

_BY_DURATION = "by_duration:"


async def first_floor(partition: Partition, config: SubscriptionConfig, now_ms: int) -> int:
    """Where one begins that nobody has created explicitly."""
    reset = config.share_auto_offset_reset
    if reset == "earliest":
        return partition.log.start_offset
    if not reset.startswith(_BY_DURATION):
        return end_of(partition)
    from headrace.model.durations import parse_duration  # hardly anybody asks for it

    return await offset_at(partition, now_ms - parse_duration(reset[len(_BY_DURATION) :]))


def end_of(partition: Partition) -> int:
    """Where what comes next will be."""
    if not partition.is_settled:
        # Its predecessor may have told of more: who begins at the end must not get what is older.
        raise OffsetNotAvailable("the new leader does not know yet what is committed; ask again")
    return partition.high_watermark


async def offset_at(partition: Partition, timestamp_ms: int) -> int:
    """The first message that is not older, or the end."""
    end_offset = end_of(partition)
    found = await partition.log.offset_for_timestamp(timestamp_ms, end_offset)
    return end_offset if found is None else found.offset
