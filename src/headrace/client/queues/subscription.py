"""Work on the messages of a subscription: lease some, process them, settle them.

    async with Subscription(cluster, "jobs", "workers") as subscription:
        for message in await subscription.lease(10, wait_seconds=5):
            ...
            await subscription.ack([message])

- A message that is not settled before its lease expires is delivered again, perhaps to another member. Settling it
  with the old lease then fails.
- `ack`, `nack`, `reject` and `extend` take any number of messages and return those that were not settled, with the
  error of each. Acks of concurrent callers are sent together.
- Messages that arrive when no `lease` call waits are kept for the next one, and released by `close`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Self

from headrace.client.cluster import Cluster
from headrace.client.queues.lease_loop import NO_LEADER, LeaseLoop, is_final
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.client.queues.settling import EXTEND, NACK, REJECT, AckBatcher, FailedSettlement, settle
from headrace.wire.messages.queues import SettleItem

_UNSET = -1


class Subscription:
    """One member, under a generated member name. `name` is the name of the subscription; `lease_seconds` None: as the
    subscription is configured."""

    def __init__(self, cluster: Cluster, topic: str, name: str, lease_seconds: float | None = None) -> None:
        self.topic = topic
        self.name = name
        self._cluster = cluster
        self._ready: deque[LeasedMessage] = deque()
        self._leases = LeaseLoop(
            cluster, name, [topic], self._ready.extend, purpose="lease", lease_seconds=lease_seconds, must_exist=False
        )
        self.member = self._leases.member
        self._acks = AckBatcher(cluster, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop leasing, and release messages that no `lease` call has returned."""
        await self._leases.leave()
        await self._leases.close()
        left = [*self._ready]
        self._ready.clear()
        await self._leases.release(left)

    # Leasing

    @property
    def ready_messages(self) -> Sequence[LeasedMessage]:
        """Messages that have arrived and wait for the next `lease`."""
        return tuple(self._ready)

    async def lease(self, count: int = 1, wait_seconds: float = 0.0) -> list[LeasedMessage]:
        """Return up to `count` messages; wait for the first one only, and return [] after `wait_seconds`.

        Every leader is asked at least once. Retriable errors (a leader has moved) are retried until the deadline of
        the client, other errors are raised.
        """
        leases, clock = self._leases, self._cluster.clock
        deadline = clock.monotonic() + wait_seconds
        give_up_at = clock.monotonic() + max(wait_seconds, self._cluster.settings.deadline_seconds)
        requested: set[int] | None = None  # the leaders that this call has sent a request to
        while not self._ready:
            leases.changed.clear()
            failure = leases.take_failure()
            if failure is not None:
                if is_final(failure) or clock.monotonic() >= give_up_at:
                    raise failure
                requested = None
            left = max(deadline - clock.monotonic(), 0.0)
            if requested is None or left > 0:
                requested = requested or {NO_LEADER}
                for node_id, topics in (await leases.idle_leaders()).items():
                    leases.request(node_id, topics, count, left)
                    requested.add(node_id)
            elif not requested & leases.pending.keys():
                return []
            await leases.wait(None if left <= 0 and requested & leases.pending.keys() else left)
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    # Settling

    async def ack(self, messages: Iterable[LeasedMessage]) -> list[FailedSettlement]:
        """Settle messages as done; they are never delivered again."""
        return await self._acks.ack(message.receipt for message in messages)

    async def nack(
        self, messages: Iterable[LeasedMessage], *, delay_seconds: float | None = None, reason: str | None = None
    ) -> list[FailedSettlement]:
        """Have messages delivered again, after the delay, or as the subscription is configured if it is None."""
        delay_ms = _UNSET if delay_seconds is None else int(delay_seconds * 1000)
        return await self._settle(messages, SettleItem(how=NACK, delay_ms=delay_ms, reason=reason))

    async def reject(self, messages: Iterable[LeasedMessage], reason: str | None = None) -> list[FailedSettlement]:
        """Make messages dead letters now."""
        return await self._settle(messages, SettleItem(how=REJECT, reason=reason))

    async def extend(
        self, messages: Iterable[LeasedMessage], lease_seconds: float | None = None
    ) -> list[FailedSettlement]:
        """Let leases expire this much later than now, or after the configured duration if it is None."""
        lease_ms = _UNSET if lease_seconds is None else int(lease_seconds * 1000)
        return await self._settle(messages, SettleItem(how=EXTEND, lease_ms=lease_ms))

    async def _settle(self, messages: Iterable[LeasedMessage], how: SettleItem) -> list[FailedSettlement]:
        return await settle(self._cluster, self.name, [message.receipt for message in messages], how)
