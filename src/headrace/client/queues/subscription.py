"""Working on the messages of a subscription: `lease` some, do the work, and `ack` them.

    async with Subscription(cluster, "jobs", "workers") as subscription:
        for message in await subscription.lease(10, wait_seconds=5):
            ...
            await subscription.ack([message])

A message that is not settled before its lease is over is delivered again, perhaps to somebody else; whoever settles it
then is refused. `nack` gives it back, now or later, `reject` makes it a dead letter, `extend` asks for more time. All
of them take many messages at once and return those that were refused, and why. Acks of several workers that are asked
for while others are on their way leave together.

Each broker that leads partitions of the topic has one Lease waiting. What it brings when nobody asks any more is kept
for the next `lease`; what is still there at the end is given back.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Self

from headrace.client.cluster import Cluster
from headrace.client.errors import error_of_code, raise_for_code
from headrace.client.queues.leased_messages import LeasedMessage, LeaseReceipt, read_leased
from headrace.client.queues.settling import EXTEND, GAP, NACK, REJECT, RELEASE, AckBatcher, FailedSettlement, settle
from headrace.model.errors import HeadraceError, UnknownTopicOrPartition
from headrace.runtime.supervise import Supervisor
from headrace.wire.messages.queues import LeaseRequest, LeaseResponse, LeaseTopic, SettleItem

_UNSET = -1
_RESPONSE_SLACK_SECONDS = 30.0
_MESSAGES_MAX = 10_000  # that a broker gives at once
_CLOSE_SECONDS = 5.0
_LEAVE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LeasingRules:
    """How much a broker may give at once. `lease_seconds` None: what the subscription is configured to."""

    bytes_max: int = 4 << 20
    lease_seconds: float | None = None


class Subscription:
    """One member. `name` is the subscription's; the member's own is made up."""

    def __init__(self, cluster: Cluster, topic: str, name: str, settings: LeasingRules | None = None) -> None:
        self.topic = topic
        self.name = name
        self.member = f"{cluster.settings.client_id}-{cluster.entropy.token(9)}"
        self._cluster = cluster
        self._settings = settings or LeasingRules()
        self._connection_key = f"lease {self.member}"
        self._tasks = Supervisor()
        self._polled_leaders: set[int] = set()  # brokers at which a Lease waits
        self._ready: deque[LeasedMessage] = deque()
        self._acks = AckBatcher(cluster, name)
        self._failure: HeadraceError | None = None
        self._messages_available = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop asking, and give back what nobody has taken."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._leave()
        await self._tasks.stop()
        self._cluster.close_connections(self._connection_key)
        left, self._ready = self._ready, deque()
        if left:
            receipts = [message.receipt for message in left]
            how = SettleItem(how=RELEASE)
            await settle(self._cluster, self.name, receipts, how, deadline_seconds=_CLOSE_SECONDS)

    async def _leave(self) -> None:
        """Let the brokers answer the Leases that wait there, so that none takes what is given back from here on."""
        for node_id in list(self._polled_leaders):
            leaving = LeaseRequest(
                subscription=self.name,
                member=self.member,
                max_wait_ms=0,
                max_messages=0,
                topics=[LeaseTopic(self.topic, [0])],
            )
            with suppress(HeadraceError):
                await self._cluster.call(leaving, node_id=node_id)
        while self._polled_leaders:
            self._messages_available.clear()
            await self._messages_available.wait()

    # Taking

    @property
    def ready_messages(self) -> Sequence[LeasedMessage]:
        """What has come and waits for the next `lease`."""
        return tuple(self._ready)

    async def lease(self, count: int = 1, wait_seconds: float = 0.0) -> list[LeasedMessage]:
        """Up to `count` messages; waits for the first one, and then for no more. [] when the time is up.

        What is wrong for a while (a leader has moved) is tried again, all else is raised.
        """
        clock = self._cluster.clock
        deadline = clock.monotonic() + wait_seconds
        patience = clock.monotonic() + max(wait_seconds, self._cluster.settings.deadline_seconds)
        backoff = self._cluster.backoff()
        requested: set[int] | None = None  # the brokers that were asked for this
        while not self._ready:
            self._messages_available.clear()
            failure, self._failure = self._failure, None
            if failure is not None:
                pause = backoff.next_seconds()
                is_final = not failure.retriable or isinstance(failure, UnknownTopicOrPartition)
                if is_final or clock.monotonic() + pause >= patience:
                    raise failure
                self._cluster.invalidate_metadata()
                await asyncio.sleep(pause)
                requested = None
            left = max(deadline - clock.monotonic(), 0.0)
            if requested is None or left > 0:
                requested = (requested or set()) | await self._poll_idle_leaders(count, left)
            elif not requested & self._polled_leaders:
                return []
            await self._wait_for_messages(None if left <= 0 and requested & self._polled_leaders else left)
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    async def _wait_for_messages(self, seconds: float | None) -> None:
        """Return when something has come, or at last after that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._messages_available.wait()
        except TimeoutError:
            pass

    async def _poll_idle_leaders(self, count: int, wait_seconds: float) -> set[int]:
        """Let a Lease wait at every leader where none does; those leaders."""
        by_leader: dict[int, list[int]] = defaultdict(list)
        try:
            view = await self._cluster.topic(self.topic)
            for partition in view.partitions:
                by_leader[partition.leader].append(partition.partition)
        except HeadraceError as error:
            self._fail(error)
            return set()
        requested = by_leader.keys() - self._polled_leaders
        for node_id in requested:
            self._polled_leaders.add(node_id)
            poll = self._poll_leader(node_id, by_leader[node_id], count, wait_seconds)
            self._tasks.spawn(poll, f"lease at broker {node_id}")
        return requested

    async def _poll_leader(self, node_id: int, partitions: Sequence[int], count: int, wait_seconds: float) -> None:
        lease_seconds = self._settings.lease_seconds
        request = LeaseRequest(
            subscription=self.name,
            member=self.member,
            max_wait_ms=ceil(wait_seconds * 1000),  # rounded down, it would be sent again for the rest
            max_messages=min(count, _MESSAGES_MAX),
            max_bytes=self._settings.bytes_max,
            lease_ms=_UNSET if lease_seconds is None else int(lease_seconds * 1000),
            topics=[LeaseTopic(self.topic, [*partitions])],
        )
        timeout_seconds = wait_seconds + _RESPONSE_SLACK_SECONDS
        try:
            answer: LeaseResponse = await self._cluster.call(
                request, node_id=node_id, timeout_seconds=timeout_seconds, connection_key=self._connection_key
            )
            raise_for_code(answer.error_code, answer.error_message)
            await self._accept_response(answer)
        except HeadraceError as error:
            self._fail(error)
        finally:
            self._polled_leaders.discard(node_id)
            self._messages_available.set()

    async def _accept_response(self, answer: LeaseResponse) -> None:
        gaps: list[LeaseReceipt] = []
        for topic in answer.topics:
            for told in topic.partitions:
                if told.error_code:
                    self._fail(error_of_code(told.error_code, told.error_message))
                    continue
                leased = read_leased(topic.name, self.member, told)
                self._ready.extend(leased.messages)
                gaps += leased.gaps
        self._messages_available.set()
        if gaps:
            await settle(self._cluster, self.name, gaps, SettleItem(how=GAP))

    def _fail(self, error: HeadraceError) -> None:
        self._failure = error
        self._messages_available.set()

    # Settling

    async def ack(self, messages: Iterable[LeasedMessage]) -> list[FailedSettlement]:
        """They are done."""
        return await self._acks.ack(message.receipt for message in messages)

    async def nack(
        self, messages: Iterable[LeasedMessage], *, delay_seconds: float | None = None, reason: str | None = None
    ) -> list[FailedSettlement]:
        """They are to be delivered again: after the delay, or, without one, as the subscription is configured."""
        delay_ms = _UNSET if delay_seconds is None else int(delay_seconds * 1000)
        return await self._settle(messages, SettleItem(how=NACK, delay_ms=delay_ms, reason=reason))

    async def reject(self, messages: Iterable[LeasedMessage], reason: str | None = None) -> list[FailedSettlement]:
        """Nobody can work on them: they become dead letters."""
        return await self._settle(messages, SettleItem(how=REJECT, reason=reason))

    async def extend(
        self, messages: Iterable[LeasedMessage], lease_seconds: float | None = None
    ) -> list[FailedSettlement]:
        """More time is needed: so much from now on, or, if nothing is said, what the subscription gives."""
        lease_ms = _UNSET if lease_seconds is None else int(lease_seconds * 1000)
        return await self._settle(messages, SettleItem(how=EXTEND, lease_ms=lease_ms))

    async def _settle(self, messages: Iterable[LeasedMessage], how: SettleItem) -> list[FailedSettlement]:
        return await settle(self._cluster, self.name, [message.receipt for message in messages], how)
