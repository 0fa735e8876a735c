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

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.client.errors import error_of_code, raise_for_code
from headrace.client.metadata import TopicView
from headrace.client.queues.leased_messages import LeasedMessage, LeaseReceipt, UnpackedBatches, read_leased
from headrace.client.queues.settling import GAP, RELEASE, settle
from headrace.model.errors import GroupIdNotFound, HeadraceError, LeaderNotAvailable, UnknownTopicOrPartition
from headrace.runtime.tasks import Supervisor
from headrace.wire.messages.queues import LeaseRequest, LeaseResponse, LeaseTopic, SettleItem

_LANE = "pull"  # for what is answered at once; settles wait for the disk, and must not be waited for
_MESSAGES_MAX = 10_000  # that a broker gives at once
_BYTES_MAX = 4 << 20
_RESPONSE_SLACK_SECONDS = 30.0
_WAIT_SECONDS_MIN = 0.001  # a Lease for less returns at once, and would be sent again and again until the time is up
_SLOW_SECONDS = 0.5  # a leader that takes longer is not waited for while there are others
_PATIENCE_SECONDS = 5.0  # with leaders that cannot be asked
_DELETION_SECONDS = 1.0  # that it may take until all partitions have forgotten a subscription
_RELEASE_SECONDS = 5.0
_IDLE_SECONDS = 90.0  # longer than anybody waits
_UNSET = -1


class _PendingPull:
    """One who stands in line, until a time of the monotonic clock."""

    __slots__ = ("count", "future", "timer", "until")

    def __init__(self, count: int, until: float) -> None:
        self.count = count
        self.until = until
        self.future: asyncio.Future[list[LeasedMessage]] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None

    def complete_empty(self) -> None:
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
        self._connection_key = f"wait {self.member}"
        self._tasks = Supervisor()
        self._settles = Supervisor()  # never stopped: what is given back has to arrive
        self._pending_pulls: OrderedDict[_PendingPull, None] = OrderedDict()
        self._requested_messages = 0  # by all in line
        self._latest_deadline = 0.0  # the latest that anybody in line waits to
        self._partitions_to_poll: list[_PendingPull] = []  # those for whom no leader has been asked yet
        self._is_pulling = False
        self._brokers_with_waiting_lease: set[int] = set()  # brokers at which a Lease waits
        self._backoff = cluster.backoff()  # of Leases that wait
        self._view: TopicView | None = None
        self._leaders: dict[int, list[int]] = {}
        self._batches = UnpackedBatches()
        self._round_robin_start = 0
        self._delivered_count = 0  # messages, to whomever

    async def close(self) -> None:
        """Answer those in line with nothing, and stop."""
        for pending in self._pending_pulls:
            pending.complete_empty()
        await self._tasks.stop()
        self._cluster.close_connections(self._connection_key)

    async def pull(self, count: int, wait_seconds: float = 0.0) -> list[LeasedMessage]:
        """Up to `count` messages; waits for the first one, and then for no more. [] when the time is up."""
        self.used_at = self._cluster.clock.monotonic()
        pending = _PendingPull(count, self.used_at + wait_seconds)
        self._pending_pulls[pending] = None
        self._requested_messages += count
        self._latest_deadline = max(self._latest_deadline, pending.until)
        self._start_pulling((pending,))
        try:
            return await pending.future
        except asyncio.CancelledError:
            future = pending.future
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release(future.result())
            raise
        finally:
            if pending.timer is not None:
                pending.timer.cancel()
            if pending in self._pending_pulls:
                del self._pending_pulls[pending]
                self._requested_messages -= count

    # What there is now

    def _start_pulling(self, pending: Iterable[_PendingPull]) -> None:
        self._partitions_to_poll += pending
        if not self._is_pulling:
            self._is_pulling = True
            self._tasks.spawn(self._run_pulls(), f"pull of {self.name}")

    async def _run_pulls(self) -> None:
        try:
            while self._partitions_to_poll:
                for pending in await self._pull_round():
                    self._wait_for_messages(pending)
        except Exception as error:  # whatever it is, it belongs to those who wait
            for pending in self._pending_pulls:
                pending.fail(error)
        finally:
            self._is_pulling = False
            self._partitions_to_poll.clear()

    async def _pull_round(self) -> list[_PendingPull]:
        """Ask all leaders, again while some cannot be asked; those who got nothing. Raises what cannot be helped."""
        pending_pulls: list[_PendingPull] = []
        clock, backoff = self._cluster.clock, self._cluster.backoff()
        patience = clock.monotonic() + _PATIENCE_SECONDS
        while True:
            pending_pulls += self._partitions_to_poll
            self._partitions_to_poll.clear()
            errors, has_answer = await self._pull_from_leaders(pending_pulls)
            pending_pulls = [pending for pending in pending_pulls if not pending.future.done()]
            if not errors or not pending_pulls:
                return pending_pulls
            for failure in errors:
                if isinstance(failure, GroupIdNotFound):
                    await self._create_in_new_partitions()
                    break
                if not failure.retriable or isinstance(failure, UnknownTopicOrPartition):
                    raise failure
            pause = backoff.next_seconds()
            if clock.monotonic() + pause >= patience:
                if has_answer:
                    return pending_pulls
                raise errors[0]
            self._cluster.invalidate_metadata()
            await asyncio.sleep(pause)

    async def _pull_from_leaders(self, pending_pulls: Sequence[_PendingPull]) -> tuple[list[HeadraceError], bool]:
        """One leader after another until all are served; what was wrong, and whether any has answered."""
        try:
            errors = await self._find_leaders()
        except HeadraceError as error:
            return [error], False
        has_answer = False
        nodes = [*self._leaders]
        self._round_robin_start += 1
        start = self._round_robin_start % len(nodes) if nodes else 0
        for node_id in [*nodes[start:], *nodes[:start]]:
            has_more = True
            while has_more and (count := _requested_count(pending_pulls)):
                before = self._delivered_count
                failure = await self._pull_from_leader(node_id, count, is_only=len(nodes) == 1)
                if failure is not None:
                    errors.append(failure)
                has_answer = has_answer or failure is None
                # What came may have gone to others, who have waited for longer.
                has_more = failure is None and self._delivered_count > before
        return errors, has_answer

    async def _pull_from_leader(self, node_id: int, count: int, *, is_only: bool) -> HeadraceError | None:
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

    async def _create_in_new_partitions(self) -> None:
        """Some do not know the subscription. Raises `SubscriptionNotFound` unless others do."""
        await asyncio.sleep(_DELETION_SECONDS)
        admin = SubscriptionAdmin(self._cluster)
        await admin.describe(self.name, [self.topic])
        await admin.create(self.topic, self.name, Position(START))

    # What comes later

    def _wait_for_messages(self, pending: _PendingPull) -> None:
        left = pending.until - self._cluster.clock.monotonic()
        if left <= 0:
            pending.complete_empty()
            return
        if pending.timer is None:
            pending.timer = asyncio.get_running_loop().call_later(left, pending.complete_empty)
        for node_id in self._leaders.keys() - self._brokers_with_waiting_lease:
            self._brokers_with_waiting_lease.add(node_id)
            self._tasks.spawn(self._wait_at_broker(node_id), f"wait at broker {node_id}")

    async def _wait_at_broker(self, node_id: int) -> None:
        try:
            while self._pending_pulls and node_id in self._leaders:
                left = self._latest_deadline - self._cluster.clock.monotonic()
                if left < _WAIT_SECONDS_MIN:
                    break  # the timers of those in line end their wait
                failure = await self._lease(node_id, self._requested_messages, left, self._connection_key)
                if failure is not None:
                    await asyncio.sleep(self._backoff.next_seconds())
                    self._start_pulling(self._pending_pulls)
                    return
                self._backoff = self._cluster.backoff()
        finally:
            self._brokers_with_waiting_lease.discard(node_id)

    # Leases

    async def _lease(
        self, node_id: int, count: int, wait_seconds: float | None = None, connection_key: str = _LANE
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
        timeout_seconds = None if wait_seconds is None else wait_seconds + _RESPONSE_SLACK_SECONDS
        try:
            answer: LeaseResponse = await self._cluster.call(
                request, node_id=node_id, timeout_seconds=timeout_seconds, connection_key=connection_key
            )
            raise_for_code(answer.error_code, answer.error_message)
        except HeadraceError as error:
            return error
        return self._accept_response(answer)

    def _accept_response(self, answer: LeaseResponse) -> HeadraceError | None:
        failure: HeadraceError | None = None
        messages: list[LeasedMessage] = []
        gaps: list[LeaseReceipt] = []
        for topic in answer.topics:
            for told in topic.partitions:
                if told.error_code:
                    failure = error_of_code(told.error_code, told.error_message)
                    continue
                leased = read_leased(topic.name, self.member, told, self._batches)
                messages += leased.messages
                gaps += leased.gaps
        if gaps:
            self._settle(gaps, GAP)
        self._deliver(messages)
        return failure

    def _deliver(self, messages: list[LeasedMessage]) -> None:
        self._delivered_count += len(messages)
        given = 0
        while given < len(messages) and self._pending_pulls:
            pending, _ = self._pending_pulls.popitem(last=False)
            self._requested_messages -= pending.count
            if not pending.future.done():
                pending.future.set_result(messages[given : given + pending.count])
                given += pending.count
        if given < len(messages):
            self.release(messages[given:])

    def release(self, messages: Sequence[LeasedMessage]) -> None:
        """Give back what was pulled and is handed to nobody; it does not count as a delivery."""
        if messages:
            self._settle([message.receipt for message in messages], RELEASE)

    def _settle(self, receipts: Sequence[LeaseReceipt], how: int) -> None:
        item = SettleItem(how=how)
        self._settles.spawn(
            settle(self._cluster, self.name, receipts, item, deadline_seconds=_RELEASE_SECONDS), "give back"
        )


def _requested_count(pending_pulls: Iterable[_PendingPull]) -> int:
    return sum(pending.count for pending in pending_pulls if not pending.future.done())


class PullerPool:
    """Those of a cluster. One that nobody has used for a while is closed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pullers: dict[tuple[str, str, float | None], Puller] = {}
        self._closing = Supervisor()
        self._swept_at = cluster.clock.monotonic()

    def get_or_create(self, topic: str, name: str, lease_seconds: float | None = None) -> Puller:
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
