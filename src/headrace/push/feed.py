"""The messages of a subscription for one receiver: never more of them in flight than its credit.

In flight is what was leased here and is not yet settled, given back or somebody else's. What brokers have been asked
for counts, too, so that nothing is leased that the receiver cannot have. Each broker that leads partitions has at most
one Lease waiting, for its share of the credit; where the credit is less than the brokers are many, they take turns.

`take` alone makes brokers be asked: whoever does not take is not fed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from headrace.client.cluster import Cluster
from headrace.client.errors import error_of_code, raise_for_code
from headrace.client.queues.gathered_acks import AckBatcher
from headrace.client.queues.leased_messages import LeasedMessage, LeaseReceipt, read_leased
from headrace.client.queues.settling import ACK, EXTEND, GAP, NACK, RELEASE, FailedSettlement, settle
from headrace.model.errors import HeadraceError, UnknownTopicOrPartition
from headrace.model.ids import MessageId
from headrace.runtime.supervise import Supervisor
from headrace.wire.messages.queues import LeaseRequest, LeaseResponse, LeaseTopic, SettleItem

_UNSET = -1
_POLL_SECONDS = 5.0
_TURN_SECONDS = 0.2  # of a broker while others wait for theirs
_RESPONSE_SLACK_SECONDS = 30.0
_BYTES_MAX = 4 << 20  # of what one broker gives at once
_MESSAGES_MAX = 10_000  # likewise
_RELEASE_SECONDS = 5.0
_EXTENSIONS_PER_LEASE = 3
_CLOSE_SECONDS = 0.1


class Feed:
    """One member. `topics` and `credit` may be changed at any time; a credit that shrinks takes nothing back."""

    def __init__(
        self,
        cluster: Cluster,
        subscription: str,
        topics: Sequence[str],
        credit: int,
        lease_seconds: float | None = None,
    ) -> None:
        self.subscription = subscription
        self.member = f"{cluster.settings.client_id}-{cluster.entropy.token(9)}"
        self.topics = topics
        self._credit = credit
        self._cluster = cluster
        self._lease_seconds = lease_seconds
        self._connection_key = f"push {self.member}"
        self._acks = AckBatcher(cluster, subscription)
        self._tasks = Supervisor()
        self._polled_leaders: dict[int, int] = {}  # for how much credit a Lease waits, by broker
        self._turns: dict[int, int] = defaultdict(
            int
        )  # when each broker was last asked, so that all come to their turn
        self._round_robin_start = 0
        self._in_flight: dict[MessageId, LeasedMessage] = {}  # each in its last delivery
        self._ready: deque[LeasedMessage] = deque()  # those that nobody has taken yet
        self._backoff = cluster.backoff()
        self._failure: HeadraceError | None = None
        self._changed = asyncio.Event()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def held(self) -> Sequence[LeasedMessage]:
        """What is in flight."""
        return tuple(self._in_flight.values())

    @property
    def free(self) -> int:
        """How many more may be leased; less than nothing when the credit has shrunk."""
        return self._credit - len(self._in_flight) - sum(self._polled_leaders.values())

    @property
    def credit(self) -> int:
        return self._credit

    @credit.setter
    def credit(self, credit: int) -> None:
        self._credit = credit
        self._changed.set()

    async def stop_leasing(self) -> None:
        """No more credit: what nobody has taken yet is let go."""
        self.credit = 0
        left, self._ready = self._ready, deque()
        await self.release(left)

    def holds(self, message: LeasedMessage) -> bool:
        return self._in_flight.get(message.id) is message

    async def close(self) -> None:
        """Stop asking, and give back what nobody has taken: it was not delivered."""
        was_asking = bool(self._polled_leaders)
        await self._tasks.stop()
        self._cluster.close_connections(self._connection_key)
        if was_asking:
            # Brokers hear of it first: a Lease that still waits there would take what is let go, for nobody.
            await asyncio.sleep(_CLOSE_SECONDS)
        await self.stop_leasing()

    # Taking

    async def take(self, wait_seconds: float) -> list[LeasedMessage]:
        """All that is there for the receiver; waits for the first message. [] when the time is up, or the credit is
        withdrawn. What is wrong for a while (a leader has moved) is tried again, all else is raised."""
        clock = self._cluster.clock
        deadline = clock.monotonic() + wait_seconds
        while not self._ready:
            self._changed.clear()
            await self._clear_failure()
            left = deadline - clock.monotonic()
            if left <= 0 or self._credit <= 0:
                return []
            await self._poll_idle_leaders()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                return []
        taken, self._ready = self._ready, deque()
        return list(taken)

    async def _clear_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is None:
            return
        if not failure.retriable or isinstance(failure, UnknownTopicOrPartition):
            raise failure
        self._cluster.invalidate_metadata()
        await asyncio.sleep(self._backoff.next_seconds())

    async def _poll_idle_leaders(self) -> None:
        """Let a Lease wait at every leader where none does, as far as the credit goes."""
        if self.free <= 0:
            return
        try:
            leaders = await self._leaders()
        except HeadraceError as error:
            self._fail(error)
            return
        waiting = sorted(leaders.keys() - self._polled_leaders.keys(), key=lambda node_id: self._turns[node_id])
        share = max(self.free // max(len(waiting), 1), 1)
        wait_seconds = _POLL_SECONDS if self.free >= len(waiting) else _TURN_SECONDS
        for node_id in waiting:
            count = min(share, self.free, _MESSAGES_MAX)
            if count <= 0:
                return
            self._round_robin_start += 1
            self._turns[node_id] = self._round_robin_start
            self._polled_leaders[node_id] = count
            self._tasks.spawn(
                self._poll_leader(node_id, leaders[node_id], count, wait_seconds), f"lease at broker {node_id}"
            )

    async def _leaders(self) -> dict[int, list[LeaseTopic]]:
        found: dict[int, list[LeaseTopic]] = defaultdict(list)
        for topic in self.topics:
            partitions: dict[int, list[int]] = defaultdict(list)
            for partition in (await self._cluster.topic(topic)).partitions:
                partitions[partition.leader].append(partition.partition)
            for node_id, indexes in partitions.items():
                found[node_id].append(LeaseTopic(topic, indexes))
        return found

    async def _poll_leader(self, node_id: int, topics: list[LeaseTopic], count: int, wait_seconds: float) -> None:
        request = LeaseRequest(
            subscription=self.subscription,
            member=self.member,
            max_wait_ms=int(wait_seconds * 1000),
            max_messages=count,
            max_bytes=_BYTES_MAX,
            lease_ms=_UNSET if self._lease_seconds is None else int(self._lease_seconds * 1000),
            topics=topics,
            must_exist=True,
        )
        gaps: list[LeaseReceipt] = []
        try:
            answer: LeaseResponse = await self._cluster.call(
                request,
                node_id=node_id,
                timeout_seconds=wait_seconds + _RESPONSE_SLACK_SECONDS,
                connection_key=self._connection_key,
            )
            raise_for_code(answer.error_code, answer.error_message)
            gaps = self._accept_response(answer)
        except HeadraceError as error:
            self._fail(error)
        finally:
            del self._polled_leaders[node_id]
            self._changed.set()
        if gaps:
            await settle(self._cluster, self.subscription, gaps, SettleItem(how=GAP))
        if self._credit <= 0:
            await self.stop_leasing()  # it was withdrawn while the Lease waited

    def _accept_response(self, answer: LeaseResponse) -> list[LeaseReceipt]:
        """What came, without the gaps, which are returned."""
        gaps: list[LeaseReceipt] = []
        is_whole = True
        for topic in answer.topics:
            for told in topic.partitions:
                if told.error_code:
                    self._fail(error_of_code(told.error_code, told.error_message))
                    is_whole = False
                    continue
                leased = read_leased(topic.name, self.member, told)
                self._in_flight.update((message.id, message) for message in leased.messages)
                self._ready.extend(leased.messages)
                gaps += leased.gaps
        if is_whole:
            self._backoff = self._cluster.backoff()
        return gaps

    def _fail(self, error: HeadraceError) -> None:
        self._failure = error
        self._changed.set()

    # Settling

    async def settle(self, receipts: Sequence[LeaseReceipt], how: SettleItem) -> list[FailedSettlement]:
        """All in the same way, also such as are not in flight here; those that were refused."""
        if how.how == ACK:
            refused = await self._acks.ack(receipts)
        else:
            refused = await settle(self._cluster, self.subscription, receipts, how)
        self.forget((one.receipt for one in refused) if how.how == EXTEND else receipts)
        return refused

    async def release(self, messages: Iterable[LeasedMessage]) -> None:
        """They were delivered to nobody: others may have them at once, and this does not count."""
        await self._settle_all(messages, SettleItem(how=RELEASE))

    async def give_back(self, messages: Iterable[LeasedMessage], reason: str) -> None:
        """They may have been delivered, and nobody will settle them: others may have them at once."""
        await self._settle_all(messages, SettleItem(how=NACK, delay_ms=0, reason=reason))

    async def _settle_all(self, messages: Iterable[LeasedMessage], how: SettleItem) -> None:
        receipts = [message.receipt for message in messages if self.holds(message)]
        if receipts:
            await settle(self._cluster, self.subscription, receipts, how, deadline_seconds=_RELEASE_SECONDS)
            self.forget(receipts)

    def forget(self, receipts: Iterable[LeaseReceipt]) -> None:
        """These are not in flight here any more: somebody has settled them, or their lease is over."""
        for receipt in receipts:
            held = self._in_flight.get(receipt.id)
            if held is not None and held.receipt == receipt:
                del self._in_flight[receipt.id]
        self._changed.set()

    async def keep_extending(self, lease_seconds: float) -> None:
        """Keep the leases of all that is in flight; those that are lost are forgotten."""
        pause = lease_seconds / _EXTENSIONS_PER_LEASE
        how = SettleItem(how=EXTEND, lease_ms=int(lease_seconds * 1000))
        while True:
            await asyncio.sleep(pause)
            held = [message.receipt for message in self._in_flight.values()]
            refused = await settle(self._cluster, self.subscription, held, how, deadline_seconds=pause)
            self.forget(one.receipt for one in refused if not one.error.retriable)
