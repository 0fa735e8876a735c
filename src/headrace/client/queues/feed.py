"""Deliver the messages of a subscription to one receiver, never more unsettled ones than its credit.

- A message counts against the credit from its lease until it is settled, released, or known to be lost. The messages
  that a pending Lease request asks for count as well, so that nothing is leased that the receiver cannot have.
- Each leader has at most one pending Lease, for its share of the credit. If the credit is smaller than the number of
  leaders, the leaders take turns.
- Only `take` sends Lease requests: a feed whose messages nobody takes leases nothing.
- Settlements by other requests return credit, too: at once if they are made in this process (`FeedRegistry`), and
  within about a second otherwise (`forget_foreign_settlements`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress

from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicPartition
from headrace.client.queues.lease_loop import LeaseLoop, is_final
from headrace.client.queues.leased_messages import LeasedMessage, LeaseReceipt
from headrace.client.queues.settling import (
    ACK,
    EXTEND,
    NACK,
    RELEASE,
    AckBatcher,
    FailedSettlement,
    message_statuses,
    settle,
)
from headrace.model.errors import HeadraceError
from headrace.model.ids import MessageId
from headrace.wire.messages.queues import SettleItem

_POLL_SECONDS = 5.0
_TURN_SECONDS = 0.2  # that a leader may wait while others have no request because the credit is used up
_RELEASE_SECONDS = 5.0
_EXTENSIONS_PER_LEASE = 3


class Feed:
    """One member. `topics` and `credit` may be changed at any time; reducing the credit takes no message back."""

    def __init__(
        self,
        cluster: Cluster,
        subscription: str,
        topics: Sequence[str],
        credit: int,
        lease_seconds: float | None = None,
    ) -> None:
        self.subscription = subscription
        self._cluster = cluster
        self._credit = credit
        self._leases = LeaseLoop(
            cluster,
            subscription,
            topics,
            self._deliver,
            purpose="push",
            lease_seconds=lease_seconds,
            keep_batches=False,  # a process has one feed per connected receiver, most of them idle
        )
        self.member = self._leases.member
        self._acks = AckBatcher(cluster, subscription)
        self._in_flight: dict[MessageId, LeasedMessage] = {}  # each in its latest delivery
        self._ready: deque[LeasedMessage] = deque()  # in flight, but not taken yet

    @property
    def topics(self) -> Sequence[str]:
        return self._leases.topics

    @topics.setter
    def topics(self, topics: Sequence[str]) -> None:
        self._leases.topics = topics

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def held(self) -> Sequence[LeasedMessage]:
        return tuple(self._in_flight.values())

    @property
    def free(self) -> int:
        """How many more messages may be requested; negative after the credit was reduced."""
        return self._credit - len(self._in_flight) - sum(self._leases.pending.values())

    @property
    def credit(self) -> int:
        return self._credit

    @credit.setter
    def credit(self, credit: int) -> None:
        self._credit = credit
        self._leases.changed.set()

    async def stop_leasing(self) -> None:
        """Set the credit to 0, and release messages that were not taken."""
        self.credit = 0
        await self._release_ready()

    async def _release_ready(self) -> None:
        left, self._ready = self._ready, deque()
        await self.release(left)

    def holds(self, message: LeasedMessage) -> bool:
        return self._in_flight.get(message.id) is message

    async def close(self) -> None:
        """Stop leasing, and release messages that were not taken: they were delivered to nobody."""
        await self._leases.leave()
        await self._leases.close()
        await self.stop_leasing()

    # Taking

    async def take(self, wait_seconds: float) -> list[LeasedMessage]:
        """Return all messages that are ready; wait for the first one. Return [] after `wait_seconds`, or when the
        credit is withdrawn. Retriable errors (a leader has moved) are retried, other errors are raised."""
        leases, clock = self._leases, self._cluster.clock
        deadline = clock.monotonic() + wait_seconds
        while not self._ready:
            leases.changed.clear()
            failure = leases.take_failure()
            if failure is not None and is_final(failure):
                raise failure
            left = deadline - clock.monotonic()
            if left <= 0 or self._credit <= 0:
                return []
            await self._request_from_idle_leaders()
            await leases.wait(left)
        taken, self._ready = self._ready, deque()
        return list(taken)

    async def _request_from_idle_leaders(self) -> None:
        if self.free <= 0:
            return
        idle = await self._leases.idle_leaders()
        free = max(self.free, 0)
        share = max(free // max(len(idle), 1), 1)
        wait_seconds = _POLL_SECONDS if free >= len(idle) else _TURN_SECONDS
        for node_id, topics in [*idle.items()][:free]:
            self._leases.request(node_id, topics, share, wait_seconds)

    def _deliver(self, messages: Sequence[LeasedMessage]) -> None:
        self._in_flight.update((message.id, message) for message in messages)
        self._ready.extend(messages)
        if self._credit <= 0:  # it was withdrawn while the request waited
            self._leases.settlements.spawn(self._release_ready(), "release")

    # Settling

    async def settle(self, receipts: Sequence[LeaseReceipt], how: SettleItem) -> list[FailedSettlement]:
        """Settle all receipts in the same way, also those that are not in flight here; returns the failed ones."""
        if how.how == ACK:
            refused = await self._acks.ack(receipts)
        else:
            refused = await settle(self._cluster, self.subscription, receipts, how)
        self.forget((one.receipt for one in refused) if how.how == EXTEND else receipts)
        return refused

    async def release(self, messages: Iterable[LeasedMessage]) -> None:
        """Return messages that were delivered to nobody; they become available at once, and no attempt is counted."""
        await self._settle_all(messages, SettleItem(how=RELEASE))

    async def give_back(self, messages: Iterable[LeasedMessage], reason: str) -> None:
        """Return messages that may have been delivered and will not be settled; they become available at once."""
        await self._settle_all(messages, SettleItem(how=NACK, delay_ms=0, reason=reason))

    async def _settle_all(self, messages: Iterable[LeasedMessage], how: SettleItem) -> None:
        receipts = [message.receipt for message in messages if self.holds(message)]
        if receipts:
            await settle(self._cluster, self.subscription, receipts, how, deadline_seconds=_RELEASE_SECONDS)
            self.forget(receipts)

    def forget(self, receipts: Iterable[LeaseReceipt]) -> None:
        """Stop counting messages that were settled by another request, or whose lease has expired."""
        for receipt in receipts:
            held = self._in_flight.get(receipt.id)
            if held is not None and held.receipt == receipt:
                del self._in_flight[receipt.id]
        self._leases.changed.set()

    async def keep_extending(self, lease_seconds: float) -> None:
        """Extend the leases of all messages in flight until cancelled; forget those whose lease is lost."""
        pause = lease_seconds / _EXTENSIONS_PER_LEASE
        how = SettleItem(how=EXTEND, lease_ms=int(lease_seconds * 1000))
        while True:
            await asyncio.sleep(pause)
            held = [message.receipt for message in self._in_flight.values()]
            refused = await settle(self._cluster, self.subscription, held, how, deadline_seconds=pause)
            self.forget(one.receipt for one in refused if not one.error.retriable)


_POLL_FIRST_SECONDS = 0.05
_POLL_MAX_SECONDS = 1.0
_STATUSES_MAX = 1000  # in one request
_SAMPLE_HALF = 50  # the oldest messages, and as many others
_LEASED = "leased"


class FeedRegistry:
    """The feeds of this process, by the member name that a receipt contains."""

    def __init__(self) -> None:
        self._by_member: dict[str, Feed] = {}

    def __len__(self) -> int:
        return len(self._by_member)

    def add(self, feed: Feed) -> None:
        self._by_member[feed.member] = feed

    def remove(self, feed: Feed) -> None:
        self._by_member.pop(feed.member, None)

    def settled(self, receipts: Iterable[LeaseReceipt]) -> None:
        """Notify the feeds of messages that were acked, nacked or rejected by another request."""
        for receipt in receipts:
            feed = self._by_member.get(receipt.member)
            if feed is not None:
                feed.forget([receipt])


async def forget_foreign_settlements(cluster: Cluster, feed: Feed) -> None:
    """Forget messages that other processes have settled, or whose lease was lost; runs until cancelled.

    The brokers are asked every second, and more often while more than half of the credit is used up. They are asked
    about a sample first, of the oldest messages and of others in turn, and about all messages only if one of the sample
    is gone. So a feed that holds many messages and settles none costs the brokers no more than a small one.
    """
    pause = _POLL_FIRST_SECONDS
    round_number = 0
    while True:
        await asyncio.sleep(pause)
        gone: list[LeaseReceipt] = []
        held = feed.held
        if held:
            sample, others = _split_sample(held, round_number)
            round_number += 1
            with suppress(HeadraceError):  # the next round asks the new leader
                gone = await _lost_receipts(cluster, feed, sample)
                if gone and others:
                    gone += await _lost_receipts(cluster, feed, others)
        if gone:
            feed.forget(gone)
        is_short = feed.in_flight * 2 > feed.credit
        if is_short and gone:
            pause = _POLL_FIRST_SECONDS
        else:
            pause = min(pause * 2, _POLL_MAX_SECONDS) if is_short else _POLL_MAX_SECONDS


def _split_sample(
    held: Sequence[LeasedMessage], round_number: int
) -> tuple[Sequence[LeasedMessage], Sequence[LeasedMessage]]:
    """The messages to ask about first, and the others. Every message is in the sample of some round."""
    if len(held) <= 2 * _SAMPLE_HALF:
        return held, ()
    oldest, newer = held[:_SAMPLE_HALF], held[_SAMPLE_HALF:]
    start = round_number * _SAMPLE_HALF % len(newer)
    end = start + _SAMPLE_HALF
    return (*oldest, *newer[start:end]), (*newer[:start], *newer[end:])


async def _lost_receipts(cluster: Cluster, feed: Feed, messages: Iterable[LeasedMessage]) -> list[LeaseReceipt]:
    by_partition: dict[TopicPartition, dict[int, LeaseReceipt]] = defaultdict(dict)
    for message in messages:
        by_partition[TopicPartition(message.id.topic, message.id.partition)][message.id.offset] = message.receipt
    gone: list[LeaseReceipt] = []
    for target, receipts in by_partition.items():
        offsets = list(receipts)
        for at in range(0, len(offsets), _STATUSES_MAX):
            some = offsets[at : at + _STATUSES_MAX]
            for status in await message_statuses(cluster, target, some, [feed.subscription]):
                ours = (_LEASED, feed.member, receipts[status.offset].attempt)
                if (status.state, status.member, status.attempts) != ours:
                    gone.append(receipts[status.offset])
    return gone
