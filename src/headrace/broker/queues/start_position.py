"""The start offset of a new subscription in a partition.

- A subscription that was not created explicitly begins as `share.auto.offset.reset` says.
- An existing subscription begins at offset 0 of every partition that is added to its topic later: none of its messages
  were delivered, so `share.auto.offset.reset=latest` would lose them. The leader of an added partition requests the
  subscriptions from the leaders of the older partitions, and serves no subscription until all have responded.
- One batch creates the inherited subscriptions, the first of the acks log. If that batch was not committed, the next
  leader finds an empty log and requests them again.
- Concurrent loads share one request, because adding n partitions to n would otherwise take n * n requests. A load uses
  only a response whose request began after the load did: an earlier one may miss a subscription that was created
  before the partition was.
"""

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


log = logging.getLogger(__name__)

READ_COMMITTED = "read_committed"
_BY_DURATION = "by_duration:"
_RETRY_SECONDS = 0.2

FindNames = Callable[[Collection[tuple[str, int]]], Awaitable[frozenset[str]]]
"""Returns the names of all subscriptions of these partitions. Raises unless every leader has responded."""


async def initial_ack_floor(partition: Partition, config: SubscriptionConfig, now_ms: int) -> int:
    """Return the start offset of a subscription that was not created explicitly."""
    reset = config.share_auto_offset_reset
    if reset == "earliest":
        return partition.log.start_offset
    if not reset.startswith(_BY_DURATION):
        return deliverable_end(partition, config)
    from headrace.model.durations import parse_duration  # rarely used

    return await offset_for_timestamp(partition, config, now_ms - parse_duration(reset[len(_BY_DURATION) :]))


def deliverable_end(partition: Partition, config: SubscriptionConfig) -> int:
    """Return the end of the deliverable messages. With read_committed, it is the last stable offset: the messages of an
    open transaction that commits later are after it, so they belong to a subscription that begins here."""
    if not partition.knows_high_watermark:
        # The previous leader's may be higher: a subscription that begins at the end must not get older messages.
        raise OffsetNotAvailable("the new leader does not know the high watermark yet; retry")
    return readable_end(partition, config)


def readable_end(partition: Partition, config: SubscriptionConfig) -> int:
    """Return the offset below which messages may be delivered."""
    is_committed_only = config.share_isolation_level == READ_COMMITTED
    return partition.last_stable_offset if is_committed_only else partition.high_watermark


async def offset_for_timestamp(partition: Partition, config: SubscriptionConfig, timestamp_ms: int) -> int:
    """Return the offset of the first message at or after a time, or the end."""
    end_offset = deliverable_end(partition, config)
    found = await partition.log.offset_for_timestamp(timestamp_ms, end_offset)
    return end_offset if found is None else found.offset


class InheritedSubscriptions:
    def __init__(self, find_names: FindNames) -> None:
        self._find_names = find_names
        self._queries: WeakValueDictionary[tuple[str, int], _NamesQuery] = WeakValueDictionary()

    async def find(self, acks: AcksLog, older_partitions: int) -> list[str]:
        """Return the subscriptions of the topic's first `older_partitions` partitions, when they can be created here.
        Retry until the leadership of the acks log ends; then raise `NotLeader`."""
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
                        "creating subscriptions of an added partition failed, will retry partition=%s-%d error=%s",
                        topic,
                        index,
                        error,
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
    def __init__(self) -> None:
        self.begun = 0
        self.lock = asyncio.Lock()
        self.names: frozenset[str] | None = None
