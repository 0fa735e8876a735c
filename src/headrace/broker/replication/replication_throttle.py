"""The throttle of replication from this leader: `leader.replication.throttled.rate`.

The rate applies to all out-of-sync replicas in total. In-sync replicas are never throttled, because producers wait for
them. A throttled follower gets an empty response, but its fetch still updates the leader's view of its log end offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.broker.fetch.fetched_partition import FetchedPartition, FollowerIdentity
from headrace.machines.queues.rate_limiter import RateLimiter
from headrace.model.broker_configs import BrokerConfig
from headrace.model.topic_configs import LONG_MAX


class ReplicationThrottle:
    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        self._config = config
        self._catching_up = RateLimiter()

    def is_free(self, now: float) -> bool:
        """Whether an out-of-sync follower may get more records."""
        return self.wait_seconds(now) == 0

    def wait_seconds(self, now: float) -> float:
        """How long until `is_free` is true; 0 if it already is."""
        limit = self._config().leader_replication_throttled_rate
        self._catching_up.per_second = None if limit == LONG_MAX else limit
        return self._catching_up.wait_seconds(now)

    def take(self, fetched_partitions: Iterable[FetchedPartition], follower: FollowerIdentity, now: float) -> None:
        """Account for the records that the follower gets."""
        self._catching_up.take(
            sum(one.size_bytes for one in fetched_partitions if one.is_for_out_of_sync_follower(follower)), now
        )
