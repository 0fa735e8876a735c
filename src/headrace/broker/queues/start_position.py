"""Where a subscription begins in a partition, also in one that was added to its topic later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from headrace.broker.partition import Partition
from headrace.model.errors import HeadraceError, OffsetNotAvailable
from headrace.model.names import ACKS_PREFIX
from headrace.model.subscription_configs import SubscriptionConfig

if TYPE_CHECKING:
    from headrace.broker.queues.acks_log import AcksLog


_BY_DURATION = "by_duration:"
READ_COMMITTED = "read_committed"


async def initial_ack_floor(partition: Partition, config: SubscriptionConfig, now_ms: int) -> int:
    """Return the start offset of a subscription that was not created explicitly."""
    reset = config.share_auto_offset_reset
    if reset == "earliest":
        return partition.log.start_offset
    if not reset.startswith(_BY_DURATION):
        return deliverable_end(partition, config)
    from headrace.model.durations import parse_duration  # hardly anybody asks for it

    return await offset_for_timestamp(partition, config, now_ms - parse_duration(reset[len(_BY_DURATION) :]))


def deliverable_end(partition: Partition, config: SubscriptionConfig) -> int:
    """The end of what may be delivered. With read_committed that is the last stable offset: an open transaction that
    commits later comes after this end, so its messages belong to the subscription."""
    if not partition.knows_high_watermark:
        # The previous leader may have had a higher one: a subscription that begins at the end must get nothing older.
        raise OffsetNotAvailable("the new leader does not know the high watermark yet; retry")
    return readable_end(partition, config)


def readable_end(partition: Partition, config: SubscriptionConfig) -> int:
    """Messages below may be delivered."""
    is_committed_only = config.share_isolation_level == READ_COMMITTED
    return partition.last_stable_offset if is_committed_only else partition.high_watermark


async def offset_for_timestamp(partition: Partition, config: SubscriptionConfig, timestamp_ms: int) -> int:
    """The first message that is not older, or the end."""
    end_offset = deliverable_end(partition, config)
    found = await partition.log.offset_for_timestamp(timestamp_ms, end_offset)
    return end_offset if found is None else found.offset


# Find the subscriptions that a partition inherits because it was added to its topic after they were created.
#
# A subscription that exists begins at offset 0 of every partition that is added later: none of its messages have been
# delivered, so beginning at the end, as `share.auto.offset.reset` may say for a new subscription, would lose them. The
# leader of the added partition asks the leaders of the partitions that are older, and serves no subscription before all
# of them have responded.
#
# - The inherited subscriptions are created by one batch, the first of the acks log. The next leader finds the log blank
#   and asks again if that batch was not committed.
# - Loads that wait at the same time share one query, or adding n partitions to n would take n * n requests.
# - A load only takes the result of a query that began after the load: an earlier one may miss a subscription that was
#   created before the partition was.


log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.2

FindNames = Callable[[Collection[tuple[str, int]]], Awaitable[frozenset[str]]]
"""The names of all subscriptions of these partitions. Raises unless every leader has responded."""


class InheritedSubscriptions:
    def __init__(self, find_names: FindNames) -> None:
        self._find_names = find_names
        self._queries: WeakValueDictionary[tuple[str, int], _NamesQuery] = WeakValueDictionary()

    async def find(self, acks: AcksLog, older_partitions: int) -> list[str]:
        """The subscriptions of the topic's first `older_partitions` partitions, when they can be created here. Retries
        until the leadership of the acks log ends, and then raises `NotLeader`."""
        topic, index = acks.partition.topic.removeprefix(ACKS_PREFIX), acks.partition.index
        is_logged = False
        while True:
            try:
                names = await self._join_query(topic, older_partitions)
                acks.ensure_writable()
                return sorted(names)
            except HeadraceError as error:
                if not is_logged:
                    log.warning(
                        "subscriptions wait for older partitions topic=%s partition=%d error=%s", topic, index, error
                    )
                    is_logged = True
            await asyncio.sleep(_RETRY_SECONDS)
            acks.ensure_leader()

    async def _join_query(self, topic: str, older_partitions: int) -> frozenset[str]:
        query = self._queries.setdefault((topic, older_partitions), _NamesQuery())
        begun = query.begun
        async with query.lock:
            if query.names is None or query.begun == begun:
                query.begun += 1
                query.names = None
                query.names = await self._find_names([(topic, index) for index in range(older_partitions)])
            return query.names


class _NamesQuery:
    __slots__ = ("__weakref__", "begun", "lock", "names")

    def __init__(self) -> None:
        self.begun = 0
        self.lock = asyncio.Lock()
        self.names: frozenset[str] | None = None
