"""Lease messages of a subscription: at most one waiting Lease request at each leader of its partitions.

`Subscription`, `Puller` and `Feed` decide how much to request from which leader, and receive what is leased.

- `deliver` receives the messages of a response in the same step in which its request stops being pending. A caller
  that counts requested and delivered messages never counts one twice.
- A leader whose request failed stays pending for a back-off pause, and only then is the failure reported. A failing
  leader delays no other leader.
- Partitions without a leader are left out and reported as a failure.
- Offsets without a message (gaps) are settled here.
- Messages that are released and gaps are settled even after `close`: the broker would hold them until their leases
  expire.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import ceil

from headrace.client.cluster import Cluster
from headrace.client.connections.backoff import Backoff
from headrace.client.errors import error_of_code, raise_for_code
from headrace.client.metadata import TopicView
from headrace.client.queues.leased_messages import LeasedMessage, LeaseReceipt, UnpackedBatches, read_leased
from headrace.client.queues.settling import GAP, RELEASE, settle
from headrace.model.errors import HeadraceError, LeaderNotAvailable, UnknownTopicOrPartition
from headrace.runtime.tasks import Supervisor, wait_until_set
from headrace.wire.messages.queues import LeaseRequest, LeaseResponse, LeaseTopic, SettleItem

NO_LEADER = -1
"""Pending instead of a leader while the partitions whose leader is not known are left alone."""

_UNSET = -1
_BYTES_MAX = 4 << 20  # of one response
_MESSAGES_MAX = 10_000  # of one request; brokers reject more
_RESPONSE_SLACK_SECONDS = 30.0
_LEAVE_SECONDS = 1.0
_SETTLE_SECONDS = 5.0


class LeaseLoop:
    """One member of a subscription in one or more topics; `topics` may be replaced at any time. `keep_batches` keeps an
    unpacked batch per partition for the next lease, at most 1 MiB each: for members of which a process has few."""

    def __init__(
        self,
        cluster: Cluster,
        subscription: str,
        topics: Sequence[str],
        deliver: Callable[[list[LeasedMessage]], None],
        *,
        purpose: str,
        lease_seconds: float | None = None,
        must_exist: bool = True,
        keep_batches: bool = True,
    ) -> None:
        self.subscription = subscription
        self.member = f"{cluster.settings.client_id}-{cluster.entropy.token(9)}"
        self.topics = topics
        self.deliver = deliver
        self.pending: dict[int, int] = {}  # leader -> requested messages; 0 during the pause after a failure
        self.changed = asyncio.Event()  # set when messages were delivered, or a request is not pending any more
        self.tasks = Supervisor()
        self.settlements = Supervisor()  # never stopped
        self._cluster = cluster
        self._connection_key = f"{purpose} {self.member}"  # a Lease that waits holds up later requests
        self._lease_ms = _UNSET if lease_seconds is None else int(lease_seconds * 1000)
        self._must_exist = must_exist
        self._keep_batches = keep_batches
        self._failure: HeadraceError | None = None
        self._backoffs: dict[int, Backoff] = {}
        self._turns: dict[int, int] = defaultdict(int)  # leader -> number of the latest request that was sent to it
        self._requests_sent = 0
        self._views: Sequence[TopicView] = ()
        self._leaders: Mapping[int, Sequence[LeaseTopic]] = {}
        self._batches: dict[str, UnpackedBatches] = defaultdict(UnpackedBatches)

    async def leave(self) -> None:
        """Let the brokers answer the waiting requests, so that none takes a message that is released later. A broker
        that does not respond does not keep the others from being told."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                async with asyncio.TaskGroup() as group:
                    for node_id in [node_id for node_id, count in self.pending.items() if count]:
                        group.create_task(self._leave(node_id))
                while any(self.pending.values()):
                    self.changed.clear()
                    await self.wait()

    async def _leave(self, node_id: int) -> None:
        leaving = LeaseRequest(
            subscription=self.subscription,
            member=self.member,
            max_wait_ms=0,
            max_messages=0,
            topics=[LeaseTopic(self.topics[0], [0])],
        )
        with suppress(HeadraceError):
            await self._cluster.call(leaving, node_id=node_id)

    async def close(self) -> None:
        """Give up what is pending."""
        await self.tasks.stop()
        self._cluster.close_connections(self._connection_key)

    # Requests

    async def find_leaders(self) -> tuple[Mapping[int, Sequence[LeaseTopic]], HeadraceError | None]:
        """The partitions of each leader, and the error for partitions that have none. Raises if a topic is unknown."""
        views = [await self._cluster.topic(topic) for topic in self.topics]
        if views != self._views:
            leaders: dict[int, list[LeaseTopic]] = defaultdict(list)
            for view in views:
                partitions: dict[int, list[int]] = defaultdict(list)
                for partition in view.partitions:
                    if partition.leader_id >= 0:
                        partitions[partition.leader_id].append(partition.partition)
                for node_id, indexes in partitions.items():
                    leaders[node_id].append(LeaseTopic(view.name, indexes))
            self._views, self._leaders = views, leaders
        for view in views:
            if not view.ready:
                return self._leaders, LeaderNotAvailable(f"some partitions of {view.name} have no leader at present")
        return self._leaders, None

    async def idle_leaders(self) -> Mapping[int, Sequence[LeaseTopic]]:
        """The leaders without a pending request, least recently requested first, and the partitions of each."""
        try:
            leaders, failure = await self.find_leaders()
        except HeadraceError as error:
            leaders, failure = {}, error
        if failure is None:
            self._backoffs.pop(NO_LEADER, None)
        elif NO_LEADER not in self.pending:
            self.pending[NO_LEADER] = 0
            self.tasks.spawn(self._request(NO_LEADER, failure=failure), "find leaders")
        idle = sorted((node_id for node_id in leaders if node_id not in self.pending), key=self._turns.__getitem__)
        return {node_id: leaders[node_id] for node_id in idle}

    def request(self, node_id: int, topics: Sequence[LeaseTopic], count: int, wait_seconds: float) -> None:
        """Request messages from an idle leader in the background; it may wait this long for the first one."""
        assert node_id not in self.pending
        self._requests_sent += 1
        self._turns[node_id] = self._requests_sent
        self.pending[node_id] = min(count, _MESSAGES_MAX)
        self.tasks.spawn(self._request(node_id, topics, count, wait_seconds), f"lease at broker {node_id}")

    async def _request(
        self,
        node_id: int,
        topics: Sequence[LeaseTopic] = (),
        count: int = 0,
        wait_seconds: float = 0.0,
        failure: HeadraceError | None = None,
    ) -> None:
        try:
            failure = failure or await self.lease(node_id, topics, count, wait_seconds)
            if failure is None:
                self._backoffs.pop(node_id, None)
                return
            self.pending[node_id] = 0
            if not is_final(failure):
                self._cluster.invalidate_metadata()
                await asyncio.sleep(self._backoffs.setdefault(node_id, self._cluster.backoff()).next_seconds())
            self._failure = failure
        finally:
            del self.pending[node_id]
            self.changed.set()

    def take_failure(self) -> HeadraceError | None:
        """The error of a request that has failed since the last call."""
        failure, self._failure = self._failure, None
        return failure

    async def wait(self, seconds: float | None = None) -> None:
        """Return when `changed` is set, or after this time."""
        await wait_until_set(self.changed, seconds)

    async def lease(
        self,
        node_id: int,
        topics: Sequence[LeaseTopic],
        count: int,
        wait_seconds: float = 0.0,
        connection_key: str | None = None,
    ) -> HeadraceError | None:
        """Deliver what one leader has; returns the error, also that of a single partition."""
        request = LeaseRequest(
            subscription=self.subscription,
            member=self.member,
            max_wait_ms=ceil(wait_seconds * 1000),  # rounded down, it would be sent again for the rest
            max_messages=min(count, _MESSAGES_MAX),
            max_bytes=_BYTES_MAX,
            lease_ms=self._lease_ms,
            topics=[*topics],
            must_exist=self._must_exist,
        )
        try:
            response: LeaseResponse = await self._cluster.call(
                request,
                node_id=node_id,
                timeout_seconds=wait_seconds + _RESPONSE_SLACK_SECONDS if wait_seconds else None,
                connection_key=self._connection_key if connection_key is None else connection_key,
            )
            raise_for_code(response.error_code, response.error_message)
        except HeadraceError as error:
            return error
        failure: HeadraceError | None = None
        messages: list[LeasedMessage] = []
        gaps: list[LeaseReceipt] = []
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code:
                    failure = error_of_code(partition.error_code, partition.error_message)
                    continue
                batches = self._batches[topic.name] if self._keep_batches else None
                try:
                    leased = read_leased(topic.name, self.member, partition, batches)
                except HeadraceError as error:  # a batch that is corrupt, or whose compression is not supported here
                    failure = error
                    continue
                messages += leased.messages
                gaps += leased.gaps
        if gaps:
            self.settlements.spawn(self._settle(gaps, GAP), "settle gaps")
        if messages:
            self.deliver(messages)
            self.changed.set()
        return failure

    # Settlements

    async def release(self, messages: Iterable[LeasedMessage]) -> None:
        """Give back messages that were delivered to nobody. This does not count as a delivery attempt."""
        await self._settle([message.receipt for message in messages], RELEASE)

    async def _settle(self, receipts: Sequence[LeaseReceipt], how: int) -> None:
        item = SettleItem(how=how)
        await settle(self._cluster, self.subscription, receipts, item, deadline_seconds=_SETTLE_SECONDS)


def is_final(error: HeadraceError) -> bool:
    """Whether retrying a request does not help."""
    return not error.retriable or isinstance(error, UnknownTopicOrPartition)
