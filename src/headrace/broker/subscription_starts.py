"""Where a subscription begins: at the start, at the end, or at a time."""

from __future__ import annotations

from headrace.broker.partition import Partition
from headrace.model.errors import OffsetNotAvailable
from headrace.model.subscription_configs import SubscriptionConfig

_BY_DURATION = "by_duration:"
READ_COMMITTED = "read_committed"


async def first_floor(partition: Partition, config: SubscriptionConfig, now_ms: int) -> int:
    """Return the start offset of a subscription that was not created explicitly."""
    reset = config.share_auto_offset_reset
    if reset == "earliest":
        return partition.log.start_offset
    if not reset.startswith(_BY_DURATION):
        return end_of(partition, config)
    from headrace.model.durations import parse_duration  # hardly anybody asks for it

    return await offset_at(partition, config, now_ms - parse_duration(reset[len(_BY_DURATION) :]))


def end_of(partition: Partition, config: SubscriptionConfig) -> int:
    """The end of what may be delivered. With read_committed that is the last stable offset: an open transaction that
    commits later comes after this end, so its messages belong to the subscription."""
    if not partition.is_settled:
        # The previous leader may have had a higher one: a subscription that begins at the end must get nothing older.
        raise OffsetNotAvailable("the new leader does not know the high watermark yet; retry")
    return readable_end(partition, config)


def readable_end(partition: Partition, config: SubscriptionConfig) -> int:
    """Messages below may be delivered."""
    is_committed_only = config.share_isolation_level == READ_COMMITTED
    return partition.last_stable_offset if is_committed_only else partition.high_watermark


async def offset_at(partition: Partition, config: SubscriptionConfig, timestamp_ms: int) -> int:
    """The first message that is not older, or the end."""
    end_offset = end_of(partition, config)
    found = await partition.log.offset_for_timestamp(timestamp_ms, end_offset)
    return end_offset if found is None else found.offset
