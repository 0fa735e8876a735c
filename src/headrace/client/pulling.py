"""Pulling for many at once: whoever wants messages of a subscription stands in line, and what comes goes to the first.

    puller = Puller(cluster, "jobs", "workers")
    messages = await puller.pull(10, wait_seconds=5)

A pull first asks for what there is now, one leader after another, so that no more is leased than is wanted; those who
come while others are asking share the next Lease. Who finds nothing and may wait does so: then one Lease waits at each
leader, for all who are in line, and the first leader that has something serves the first in it.

Whoever stops waiting leaves nothing behind. A Lease that waits is not broken off for that, since what it brings would
be held by nobody until its time is up: what comes for nobody is released at once, which does not count as a delivery.

A subscription that does not exist is not made by asking for its messages. Only where its topic has grown, the new
partitions are taken in, from their beginning.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from headrace.client.cluster import Cluster
from headrace.client.errors import raise_for, refusal
from headrace.client.leased import Message, OpenBatches, Receipt, read_leased
from headrace.client.metadata import TopicView
from headrace.client.settling import GAP, RELEASE, settle
from headrace.client.subscription_admin import START, Position, SubscriptionAdmin
from headrace.model.errors import GroupIdNotFound, HeadraceError, LeaderNotAvailable, UnknownTopicOrPartition
from headrace.runtime.supervise import Supervisor
from headrace.wire.messages.lease import LeaseRequest, LeaseResponse, LeaseTopic
from headrace.wire.messages.settle import SettleItem

_LANE = "pull"  # for what is answered at once; settles wait for the disk, and must not be waited for
_MESSAGES_MAX = 10_000  # that a broker gives at once
_BYTES_MAX = 4 << 20
_ANSWER_SLACK_SECONDS = 30.0
_WAIT_SECONDS_MIN = 0.001  # a Lease for less returns at once, and would be sent again and again until the time is up
_SLOW_SECONDS = 0.5  # a leader that takes longer is not waited for while there are others
_PATIENCE_SECONDS = 5.0  # with leaders that cannot be asked
_DELETION_SECONDS = 1.0  # that it may take until all partitions have forgotten a subscription
_RELEASE_SECONDS = 5.0
_IDLE_SECONDS = 90.0  # longer than anybody waits
_UNSET = -1


class _Wanting:
    """One who stands in line, until a time of the monotonic clock."""

    __slots__ = ("count", "future", "timer", "until")

    def __init__(self, count: int, until: float) -> None:
        self.count = count
        self.until = until
        self.future: asyncio.Future[list[Message]] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None

    def give_up(self) -> None:
        if not self.future.done():
            self.future.set_result([])

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Puller:
    """Of one subscription, for leases of one length; None as `lease_seconds`: what the subscription gives."""

    def __init__(self, cluster: Cluster, topic: str, name: str, lease_seconds: float | None = None) -> None:
        self.topic = topic
        self.name = name
        self.member = f"{cluster.settings.client_id}-{cluster.entropy.token(9)}"
        self.used_at = 0.0
        self._cluster = cluster
        self._lease_ms = _UNSET if lease_seconds is None else int(lease_seconds * 1000)
        self._lane = f"wait {self.member}"
        self._tasks = Supervisor()
        self._settles = Supervisor()  # never stopped: what is given back has to arrive
        self._line: OrderedDict[_Wanting, None] = OrderedDict()
        self._wanted = 0  # by all in line
        self._until = 0.0  # the latest that anybody in line waits to
        self._unasked: list[_Wanting] = []  # those for whom no leader has been asked yet
        self._is_asking = False
        self._waits: set[int] = set()  # brokers at which a Lease waits
        self._backoff = cluster.backoff()  # of Leases that wait
        self._view: TopicView | None = None
        self._leaders: dict[int, list[int]] = {}
        self._batches = OpenBatches()
        self._turn = 0
        self._given = 0  # messages, to whomever

    async def close(self) -> None:
        """Answer those in line with nothing, and stop."""
        for wanting in self._line:
            wanting.give_up()
        await self._tasks.stop()
        self._cluster.close_lane(self._lane)

    async def pull(self, count: int, wait_seconds: float = 0.0) -> list[Message]:
        """Up to `count` messages; waits for the first one, and then for no more. [] when the time is up."""
        self.used_at = self._cluster.clock.monotonic()
        wanting = _Wanting(count, self.used_at + wait_seconds)
        self._line[wanting] = None
        self._wanted += count
        self._until = max(self._until, wanting.until)
        self._start_to_ask((wanting,))
        try:
            return await wanting.future
        except asyncio.CancelledError:
            future = wanting.future
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release(future.result())
            raise
        finally:
            if wanting.timer is not None:
                wanting.timer.cancel()
            if wanting in self._line:
                del self._line[wanting]
                self._wanted -= count

    # What there is now

    def _start_to_ask(self, wanting: Iterable[_Wanting]) -> None:
        self._unasked += wanting
        if not self._is_asking:
            self._is_asking = True
            self._tasks.spawn(self._ask(), f"pull of {self.name}")

    async def _ask(self) -> None:
        try:
            while self._unasked:
                for wanting in await self._ask_round():
                    self._let_wait(wanting)
        except Exception as error:  # whatever it is, it belongs to those who wait
            for wanting in self._line:
                wanting.fail(error)
        finally:
            self._is_asking = False
            self._unasked.clear()

    async def _ask_round(self) -> list[_Wanting]:
        """Ask all leaders, again while some cannot be asked; those who got nothing. Raises what cannot be helped."""
        asking: list[_Wanting] = []
        clock, backoff = self._cluster.clock, self._cluster.backoff()
        patience = clock.monotonic() + _PATIENCE_SECONDS
        while True:
            asking += self._unasked
            self._unasked.clear()
            failures, has_answer = await self._ask_each(asking)
            asking = [wanting for wanting in asking if not wanting.future.done()]
            if not failures or not asking:
                return asking
            for failure in failures:
                if isinstance(failure, GroupIdNotFound):
                    await self._take_in_partitions()
                    break
                if not failure.retriable or isinstance(failure, UnknownTopicOrPartition):
                    raise failure
            pause = backoff.next_seconds()
            if clock.monotonic() + pause >= patience:
                if has_answer:
                    return asking
                raise failures[0]
            self._cluster.distrust()
            await asyncio.sleep(pause)

    async def _ask_each(self, asking: Sequence[_Wanting]) -> tuple[list[HeadraceError], bool]:
        """One leader after another until all are served; what was wrong, and whether any has answered."""
        try:
            failures = await self._find_leaders()
        except HeadraceError as error:
            return [error], False
        has_answer = False
        nodes = [*self._leaders]
        self._turn += 1
        start = self._turn % len(nodes) if nodes else 0
        for node_id in [*nodes[start:], *nodes[:start]]:
            has_more = True
            while has_more and (count := _wanted_by(asking)):
                before = self._given
                failure = await self._ask_one(node_id, count, is_only=len(nodes) == 1)
                if failure is not None:
                    failures.append(failure)
                has_answer = has_answer or failure is None
                # What came may have gone to others, who have waited for longer.
                has_more = failure is None and self._given > before
        return failures, has_answer

    async def _ask_one(self, node_id: int, count: int, *, is_only: bool) -> HeadraceError | None:
        lease = self._lease(node_id, count)
        if is_only:
            return await lease
        task = self._tasks.spawn(lease, f"pull at broker {node_id}")
        await asyncio.wait((task,), timeout=_SLOW_SECONDS)
        return task.result() if task.done() else None

    async def _find_leaders(self) -> list[HeadraceError]:
        """What keeps partitions from being asked."""
        view = await self._cluster.topic(self.topic)
        if view is not self._view:
            self._view = view
            self._leaders = {}
            for partition in view.partitions:
                if partition.leader_id >= 0:
                    self._leaders.setdefault(partition.leader_id, []).append(partition.partition)
        if view.ready:
            return []
        return [LeaderNotAvailable(f"some partitions of {self.topic} have no leader at present")]

    async def _take_in_partitions(self) -> None:
        """Some do not know the subscription. Raises `SubscriptionNotFound` unless others do."""
        await asyncio.sleep(_DELETION_SECONDS)
        admin = SubscriptionAdmin(self._cluster)
        await admin.describe(self.name, [self.topic])
        await admin.create(self.topic, self.name, Position(START))

    # What comes later

    def _let_wait(self, wanting: _Wanting) -> None:
        left = wanting.until - self._cluster.clock.monotonic()
        if left <= 0:
            wanting.give_up()
            return
        if wanting.timer is None:
            wanting.timer = asyncio.get_running_loop().call_later(left, wanting.give_up)
        for node_id in self._leaders.keys() - self._waits:
            self._waits.add(node_id)
            self._tasks.spawn(self._wait_at(node_id), f"wait at broker {node_id}")

    async def _wait_at(self, node_id: int) -> None:
        try:
            while self._line and node_id in self._leaders:
                left = self._until - self._cluster.clock.monotonic()
                if left < _WAIT_SECONDS_MIN:
                    break  # the timers of those in line end their wait
                failure = await self._lease(node_id, self._wanted, left, self._lane)
                if failure is not None:
                    await asyncio.sleep(self._backoff.next_seconds())
                    self._start_to_ask(self._line)
                    return
                self._backoff = self._cluster.backoff()
        finally:
            self._waits.discard(node_id)

    # Leases

    async def _lease(
        self, node_id: int, count: int, wait_seconds: float | None = None, lane: str = _LANE
    ) -> HeadraceError | None:
        """Hand out what this leader has; what was wrong."""
        request = LeaseRequest(
            subscription=self.name,
            member=self.member,
            max_wait_ms=0 if wait_seconds is None else int(wait_seconds * 1000),
            max_messages=min(count, _MESSAGES_MAX),
            max_bytes=_BYTES_MAX,
            lease_ms=self._lease_ms,
            topics=[LeaseTopic(self.topic, self._leaders[node_id])],
            must_exist=True,
        )
        timeout_seconds = None if wait_seconds is None else wait_seconds + _ANSWER_SLACK_SECONDS
        try:
            answer: LeaseResponse = await self._cluster.call(
                request, node_id=node_id, timeout_seconds=timeout_seconds, lane=lane
            )
            raise_for(answer.error_code, answer.error_message)
        except HeadraceError as error:
            return error
        return self._take(answer)

    def _take(self, answer: LeaseResponse) -> HeadraceError | None:
        failure: HeadraceError | None = None
        messages: list[Message] = []
        gaps: list[Receipt] = []
        for topic in answer.topics:
            for told in topic.partitions:
                if told.error_code:
                    failure = refusal(told.error_code, told.error_message)
                    continue
                leased = read_leased(topic.name, self.member, told, self._batches)
                messages += leased.messages
                gaps += leased.gaps
        if gaps:
            self._settle(gaps, GAP)
        self._hand_out(messages)
        return failure

    def _hand_out(self, messages: list[Message]) -> None:
        self._given += len(messages)
        given = 0
        while given < len(messages) and self._line:
            wanting, _ = self._line.popitem(last=False)
            self._wanted -= wanting.count
            if not wanting.future.done():
                wanting.future.set_result(messages[given : given + wanting.count])
                given += wanting.count
        if given < len(messages):
            self.release(messages[given:])

    def release(self, messages: Sequence[Message]) -> None:
        """Give back what was pulled and is handed to nobody; it does not count as a delivery."""
        if messages:
            self._settle([message.receipt for message in messages], RELEASE)

    def _settle(self, receipts: Sequence[Receipt], how: int) -> None:
        item = SettleItem(how=how)
        self._settles.spawn(
            settle(self._cluster, self.name, receipts, item, deadline_seconds=_RELEASE_SECONDS), "give back"
        )


def _wanted_by(asking: Iterable[_Wanting]) -> int:
    return sum(wanting.count for wanting in asking if not wanting.future.done())


class Pullers:
    """Those of a cluster. One that nobody has used for a while is closed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pullers: dict[tuple[str, str, float | None], Puller] = {}
        self._closing = Supervisor()
        self._swept_at = cluster.clock.monotonic()

    def of(self, topic: str, name: str, lease_seconds: float | None = None) -> Puller:
        now = self._cluster.clock.monotonic()
        if now - self._swept_at > _IDLE_SECONDS:
            self._swept_at = now
            self._sweep(now)
        key = (topic, name, lease_seconds)
        puller = self._pullers.get(key)
        if puller is None:
            puller = self._pullers[key] = Puller(self._cluster, topic, name, lease_seconds)
            puller.used_at = now
        return puller

    async def close(self) -> None:
        for puller in self._pullers.values():
            await puller.close()
        self._pullers.clear()

    def _sweep(self, now: float) -> None:
        for key, puller in list(self._pullers.items()):
            if now - puller.used_at > _IDLE_SECONDS:
                del self._pullers[key]
                self._closing.spawn(puller.close(), f"close the puller of {puller.name}")
