"""Pull messages of a subscription for many concurrent callers, who are served in the order of their calls.

    puller = Puller(cluster, "jobs", "workers")
    messages = await puller.pull(10, wait_seconds=5)

- A pull first asks for what is available now, one leader after another, so that no more is leased than is wanted.
  Pulls that arrive meanwhile share the next round.
- Pulls that found nothing and may wait share one waiting Lease per leader. The first leader that has messages serves
  the pull that has waited longest.
- A pull that is cancelled leaves nothing behind. The waiting Lease is kept, because cancelling it could lose a message
  until its lease expires; messages that arrive for nobody are released, which does not count as a delivery attempt.
- A pull does not create the subscription. If the topic has grown, the subscription is extended to the new partitions,
  from their first message.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.client.queues.lease_loop import LeaseLoop, is_final
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.model.errors import GroupIdNotFound, HeadraceError
from headrace.runtime.tasks import Supervisor
from headrace.wire.messages.queues import LeaseTopic

_CONNECTION_KEY = "pull"  # for requests that are answered at once: settles wait for the disk and would delay them
_SLOW_SECONDS = 0.5  # a leader that takes longer is not waited for while there are others
_PATIENCE_SECONDS = 5.0  # with leaders that cannot be reached
_DELETION_SECONDS = 1.0  # until all partitions have deleted a subscription
_IDLE_SECONDS = 90.0  # longer than any pull waits


class _PendingPull:
    __slots__ = ("count", "future", "timer", "until")

    def __init__(self, count: int, until: float) -> None:
        self.count = count
        self.until = until  # monotonic seconds
        self.future: asyncio.Future[list[LeasedMessage]] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None

    def complete_empty(self) -> None:
        if not self.future.done():
            self.future.set_result([])

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Puller:
    """Of one subscription, for leases of one duration; `lease_seconds` None: as the subscription is configured."""

    def __init__(self, cluster: Cluster, topic: str, name: str, lease_seconds: float | None = None) -> None:
        self.topic = topic
        self.name = name
        self.used_at = 0.0
        self._cluster = cluster
        self._leases = LeaseLoop(cluster, name, [topic], self._deliver, purpose="wait", lease_seconds=lease_seconds)
        self._pending: OrderedDict[_PendingPull, None] = OrderedDict()
        self._requested_messages = 0  # by all pending pulls
        self._latest_deadline = 0.0  # of all pulls so far
        self._unasked: list[_PendingPull] = []  # pending pulls for which no leader has been asked yet
        self._is_asking = False
        self._is_waiting = False
        self._rounds = 0
        self._delivered_count = 0  # messages, to any pull

    async def close(self) -> None:
        """Answer pending pulls with nothing, and stop."""
        for pending in self._pending:
            pending.complete_empty()
        await self._leases.close()

    async def pull(self, count: int, wait_seconds: float = 0.0) -> list[LeasedMessage]:
        """Return up to `count` messages; wait for the first one only, and return [] after `wait_seconds`."""
        self.used_at = self._cluster.clock.monotonic()
        pending = _PendingPull(count, self.used_at + wait_seconds)
        self._pending[pending] = None
        self._requested_messages += count
        self._latest_deadline = max(self._latest_deadline, pending.until)
        self._start_asking((pending,))
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
            if pending in self._pending:
                del self._pending[pending]
                self._requested_messages -= count

    def release(self, messages: Sequence[LeasedMessage]) -> None:
        """Give back messages that were pulled and are delivered to nobody; this is not a delivery attempt."""
        self._leases.settlements.spawn(self._leases.release(messages), "release")

    def _deliver(self, messages: list[LeasedMessage]) -> None:
        self._delivered_count += len(messages)
        given = 0
        while given < len(messages) and self._pending:
            pending, _ = self._pending.popitem(last=False)
            self._requested_messages -= pending.count
            if not pending.future.done():
                pending.future.set_result(messages[given : given + pending.count])
                given += pending.count
        if given < len(messages):
            self.release(messages[given:])

    # Available messages

    def _start_asking(self, pulls: Iterable[_PendingPull]) -> None:
        self._unasked += pulls
        if not self._is_asking:
            self._is_asking = True
            self._leases.tasks.spawn(self._ask_for_available(), f"pull of {self.name}")

    async def _ask_for_available(self) -> None:
        try:
            while self._unasked:
                for pending in await self._ask_all_leaders():
                    self._wait_for_messages(pending)
        except Exception as error:  # any error belongs to the callers, also that of a bug
            for pending in self._pending:
                pending.fail(error)
        finally:
            self._is_asking = False
            self._unasked.clear()

    async def _ask_all_leaders(self) -> list[_PendingPull]:
        """Ask all leaders, again while some cannot be reached; returns the pulls that got nothing. Raises errors that
        retrying does not help."""
        pulls: list[_PendingPull] = []
        clock, backoff = self._cluster.clock, self._cluster.backoff()
        give_up_at = clock.monotonic() + _PATIENCE_SECONDS
        while True:
            pulls = [*dict.fromkeys((*pulls, *self._unasked))]  # a pull can be asked for anew while it is asked for
            self._unasked.clear()
            errors, has_response = await self._ask_each_leader(pulls)
            pulls = [pending for pending in pulls if not pending.future.done()]
            if not errors or not pulls:
                return pulls
            for failure in errors:
                if isinstance(failure, GroupIdNotFound):
                    await self._create_in_new_partitions()
                    break
                if is_final(failure):
                    raise failure
            pause = backoff.next_seconds()
            if clock.monotonic() + pause >= give_up_at:
                if has_response:
                    return pulls
                raise errors[0]
            self._cluster.invalidate_metadata()
            await asyncio.sleep(pause)

    async def _ask_each_leader(self, pulls: Sequence[_PendingPull]) -> tuple[list[HeadraceError], bool]:
        """One leader after another until all pulls are served; returns the errors, and whether any leader responded."""
        try:
            leaders, failure = await self._leases.find_leaders()
        except HeadraceError as error:
            return [error], False
        errors = [] if failure is None else [failure]
        has_response = False
        nodes = [*leaders]
        self._rounds += 1
        start = self._rounds % len(nodes) if nodes else 0
        for node_id in [*nodes[start:], *nodes[:start]]:
            has_more = True
            while has_more and (count := sum(pending.count for pending in pulls if not pending.future.done())):
                before = self._delivered_count
                failure = await self._ask_leader(node_id, leaders[node_id], count, is_only=len(nodes) == 1)
                if failure is not None:
                    errors.append(failure)
                has_response = has_response or failure is None
                # The messages may have been delivered to other pulls, which had waited longer.
                has_more = failure is None and self._delivered_count > before
        return errors, has_response

    async def _ask_leader(
        self, node_id: int, topics: Sequence[LeaseTopic], count: int, *, is_only: bool
    ) -> HeadraceError | None:
        lease = self._leases.lease(node_id, topics, count, connection_key=_CONNECTION_KEY)
        if is_only:
            return await lease
        task = self._leases.tasks.spawn(lease, f"pull at broker {node_id}")
        await asyncio.wait((task,), timeout=_SLOW_SECONDS)
        return task.result() if task.done() else None

    async def _create_in_new_partitions(self) -> None:
        """Extend the subscription to partitions that do not know it; raises `SubscriptionNotFound` if none does."""
        await asyncio.sleep(_DELETION_SECONDS)
        admin = SubscriptionAdmin(self._cluster)
        await admin.describe(self.name, [self.topic])
        await admin.create(self.topic, self.name, Position(START))

    # Later messages

    def _wait_for_messages(self, pending: _PendingPull) -> None:
        left = pending.until - self._cluster.clock.monotonic()
        if left <= 0:
            pending.complete_empty()
            return
        if pending.timer is None:
            pending.timer = asyncio.get_running_loop().call_later(left, pending.complete_empty)
        self._leases.changed.set()
        if not self._is_waiting:
            self._is_waiting = True
            self._leases.tasks.spawn(self._keep_leases_waiting(), f"wait for messages of {self.name}")

    async def _keep_leases_waiting(self) -> None:
        leases, clock = self._leases, self._cluster.clock
        try:
            while True:
                leases.changed.clear()
                idle = await leases.idle_leaders()
                left = self._latest_deadline - clock.monotonic()
                if not self._pending or left <= 0:
                    return
                for node_id, topics in idle.items():
                    leases.request(node_id, topics, self._requested_messages, left)
                await leases.wait()
                if leases.take_failure() is not None:
                    self._start_asking(self._pending)
                    return
        finally:
            self._is_waiting = False


class PullerPool:
    """The pullers of a cluster. A puller is closed when it has not been used for a while."""

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
