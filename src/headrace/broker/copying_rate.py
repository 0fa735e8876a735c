"""How fast this broker lets others copy what it leads: `leader.replication.throttled.rate`.

It holds for replicas that are not in sync yet, together, whoever has them. One that is in sync is never held up, for
producers wait for it. Who is held up is told nothing new but is listened to: where its log ends counts all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.broker.readings import Follower, Reading
from headrace.machines.rate import Rate
from headrace.model.broker_configs import BrokerConfig
from headrace.model.replication_configs import LONG_MAX


class CopyingRate:
    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        self._config = config
        self._catching_up = Rate()

    def is_free(self, now: float) -> bool:
        """Whether one that catches up may be given more."""
        return self.wait_seconds(now) == 0

    def wait_seconds(self, now: float) -> float:
        """How long until it may; 0 if at once."""
        limit = self._config().leader_replication_throttled_rate
        self._catching_up.per_second = None if limit == LONG_MAX else limit
        return self._catching_up.wait_seconds(now)

    def take(self, readings: Iterable[Reading], follower: Follower, now: float) -> None:
        """This is what the follower is given."""
        self._catching_up.take(sum(one.size_bytes for one in readings if one.is_for_joining(follower)), now)
