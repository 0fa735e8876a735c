"""Subscriptions, as an administrator handles them: make, look at, move, delete; and what became of single messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from headrace.client.admin.config_requests import (
    Resource,
    alter_configs,
    configured_resources,
    describe_configs,
    replace_configs,
)
from headrace.client.admin.topic_admin import ReportedConfigSource
from headrace.client.cluster import Cluster
from headrace.client.errors import SubscriptionNotFound, raise_for_code
from headrace.client.fetch.consumer import Consumer, ConsumerSettings
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.metadata import TopicPartition
from headrace.client.queues.message_status import SETTLED, message_statuses
from headrace.model.errors import GroupIdNotFound
from headrace.model.ids import MessageId
from headrace.model.names import ACKS_PREFIX
from headrace.model.subscription_configs import GROUP_RESOURCE, SUBSCRIPTION_RESOURCE, subscription_resource_name
from headrace.wire.messages.queues import (
    AlterSubscriptionsPartition,
    AlterSubscriptionsRequest,
    AlterSubscriptionsTopic,
    DescribeSubscriptionsRequest,
    DescribeSubscriptionsTopic,
    SubscriptionStatus,
)

END, START = -1, -2
_CREATE, _SEEK, _DELETE = range(3)
_UNSET = -1
_PEEKED_AT_ONCE = 500
_PEEK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Position:
    """Where a subscription begins: an offset, or START or END, or the first message that is not older than a time."""

    offset: int = END
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionBacklog:
    """How far a subscription is in one partition; the backlog has those that are leased, wait or die."""

    subscription: str
    target: TopicPartition
    floor: int
    end: int
    backlog: int
    leased: int
    waiting: int
    dying: int
    oldest_ms: int | None


class PeekedMessage(NamedTuple):
    """A message that is not settled, and how it stands."""

    record: ConsumedRecord
    status: SubscriptionStatus


class SubscriptionAdmin:
    """Administration of subscriptions over a cluster that the caller opened."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list(self) -> Sequence[PartitionBacklog]:
        """Every subscription of every topic that has any, by name, topic and partition."""
        return await self.describe()

    async def describe(
        self, name: str | None = None, topics: Iterable[str] | None = None
    ) -> Sequence[PartitionBacklog]:
        """The subscription, or all of them, in these topics, or in all that have any. Raises SubscriptionNotFound for
        one that is nowhere."""
        if topics is None:
            view = await self._cluster.call_with_retries(self._cluster.refresh)
            acked = [topic.removeprefix(ACKS_PREFIX) for topic in view.topics if topic.startswith(ACKS_PREFIX)]
            topics = [topic for topic in acked if topic in view.topics]
        found = await self._describe(name, [target for topic in topics for target in await self._targets(topic)])
        if name is not None and not found:
            raise SubscriptionNotFound(f"there is no subscription {name!r}")
        return sorted(found, key=lambda one: (one.subscription, one.target))

    async def create(
        self, topic: str, name: str, position: Position, configs: Mapping[str, str] | None = None
    ) -> Mapping[TopicPartition, int]:
        """Make the subscription in every partition of the topic; where it exists it stays as it is. Where it stands.

        A new one has the configuration given here and nothing else; of one that exists, single settings are changed. In
        partitions that are added meanwhile, it begins with their first message.
        """
        targets = await self._targets(topic)
        if await self._describe(name, targets):
            if configs:
                await self.configure(topic, name, configs)
        elif configs:
            await replace_configs(self._cluster, _resource(topic, name), configs)
        else:
            # Without a change: another client that configures the same new subscription right now is not overwritten.
            await alter_configs(self._cluster, _resource(topic, name), {})
        floors = {**await self._alter(name, _CREATE, targets, position)}
        # A partition that was added since may have looked for subscriptions to inherit before this one existed.
        added = sorted({*await self._targets(topic)} - {*targets})
        return floors | {**await self._alter(name, _CREATE, added, Position(START))}

    async def exists(self, topic: str, name: str) -> bool:
        return bool(await self._describe(name, await self._targets(topic)))

    async def seek(
        self, topic: str, name: str, position: Position, partitions: Sequence[int] = ()
    ) -> Mapping[TopicPartition, int]:
        """Let it go on elsewhere, in these partitions or in all; all its leases end. Where it stands."""
        targets = [TopicPartition(topic, partition) for partition in partitions] or await self._targets(topic)
        return await self._alter(name, _SEEK, targets, position)

    async def configs(self, topic: str, name: str) -> Mapping[str, str | None]:
        """The settings of a subscription that are not left to their defaults; None as the value of a secret one."""
        described = await describe_configs(self._cluster, _resource(topic, name))
        return {one.name: one.value for one in described if one.config_source != ReportedConfigSource.DEFAULT}

    async def configure(
        self, topic: str, name: str, set_to: Mapping[str, str], back_to_default: Iterable[str] = ()
    ) -> None:
        """Change single settings of a subscription; the others stay as they are."""
        await alter_configs(self._cluster, _resource(topic, name), {**set_to, **dict.fromkeys(back_to_default)})

    async def delete(self, topic: str, name: str) -> None:
        """Forget it, what was settled for it and its configuration, in all partitions that know it."""
        known = {one.target for one in await self.describe(name, [topic])}
        await self._clear_group_configs(topic, {name})
        await self._alter(name, _DELETE, sorted(known), Position())

    async def clear_group_configs(self, topic: str) -> None:
        """Before a topic is deleted: delete the configurations of groups that end with it."""
        if await configured_resources(self._cluster, GROUP_RESOURCE):
            names = {one.subscription for one in await self._describe(None, await self._targets(topic))}
            await self._clear_group_configs(topic, names)

    async def _clear_group_configs(self, topic: str, names: Set[str]) -> None:
        """A group's configuration goes with the last subscription that has no configuration of its own. One that has
        its own leaves it alone: it may have been made by a tenant who must not change the group."""
        names &= await configured_resources(self._cluster, GROUP_RESOURCE)
        own = await configured_resources(self._cluster, SUBSCRIPTION_RESOURCE) if names else frozenset()
        for name in sorted(names):
            is_own = subscription_resource_name(topic, name) in own
            if not is_own and {one.target.topic for one in await self.describe(name)} == {topic}:
                await replace_configs(self._cluster, (GROUP_RESOURCE, name), {})

    async def status(self, message: MessageId, names: Sequence[str] | None = None) -> Sequence[SubscriptionStatus]:
        """How the message stands for each subscription, and what became of it."""
        target = TopicPartition(message.topic, message.partition)
        return await message_statuses(self._cluster, target, [message.offset], names, with_history=True)

    async def peek(self, topic: str, name: str) -> AsyncGenerator[PeekedMessage, None]:
        """Messages that are not settled, from the oldest on, partition by partition; nothing is leased by that."""
        for backlog in await self.describe(name, [topic]):
            if backlog.backlog:
                async for peeked in self._peek(backlog):
                    yield peeked

    # Asking

    async def _peek(self, backlog: PartitionBacklog) -> AsyncIterator[PeekedMessage]:
        target = backlog.target
        settings = ConsumerSettings(commit_seconds=None)
        async with Consumer(self._cluster, partitions={target: backlog.floor}, settings=settings) as consumer:
            reached = backlog.floor
            while reached < backlog.end:
                records = await consumer.poll(_PEEKED_AT_ONCE, _PEEK_SECONDS)
                if not records:
                    return  # what is left are gaps
                reached = records[-1].offset + 1
                offsets = [record.offset for record in records if record.offset < backlog.end]
                statuses = await message_statuses(self._cluster, target, offsets, [backlog.subscription])
                by_offset = {status.offset: status for status in statuses}
                for record in records:
                    status = by_offset.get(record.offset)
                    if status is not None and status.state != SETTLED:
                        yield PeekedMessage(record, status)

    async def _describe(self, name: str | None, targets: Sequence[TopicPartition]) -> Sequence[PartitionBacklog]:
        names = None if name is None else [name]
        found: list[PartitionBacklog] = []

        def request(topics: Mapping[str, Sequence[TopicPartition]]) -> DescribeSubscriptionsRequest:
            requested = [
                DescribeSubscriptionsTopic(topic, [t.partition for t in some]) for topic, some in topics.items()
            ]
            return DescribeSubscriptionsRequest(subscriptions=names, topics=requested)

        def take(target: TopicPartition, told: Any) -> None:
            found.extend(
                PartitionBacklog(
                    one.subscription,
                    target,
                    one.floor,
                    one.end,
                    one.backlog,
                    one.leased,
                    one.waiting,
                    one.dying,
                    None if one.oldest_ms == _UNSET else one.oldest_ms,
                )
                for one in told.subscriptions
            )

        await self._call_leaders(targets, request, take)
        return found

    async def _alter(
        self, name: str, action: int, targets: Sequence[TopicPartition], position: Position
    ) -> Mapping[TopicPartition, int]:
        floors: dict[TopicPartition, int] = {}
        timestamp_ms = _UNSET if position.timestamp_ms is None else position.timestamp_ms

        def request(topics: Mapping[str, Sequence[TopicPartition]]) -> AlterSubscriptionsRequest:
            requested = [
                AlterSubscriptionsTopic(
                    topic, [AlterSubscriptionsPartition(t.partition, position.offset, timestamp_ms) for t in some]
                )
                for topic, some in topics.items()
            ]
            return AlterSubscriptionsRequest(name, action, requested)

        def take(target: TopicPartition, told: Any) -> None:
            floors[target] = told.floor

        await self._call_leaders(targets, request, take)
        return floors

    async def _call_leaders(
        self,
        targets: Sequence[TopicPartition],
        request: Callable[[Mapping[str, Sequence[TopicPartition]]], Any],
        take: Callable[[TopicPartition, Any], None],
    ) -> None:
        """Ask each leader for its partitions; those that have answered are not asked again."""
        waiting = dict.fromkeys(targets)

        async def ask() -> None:
            by_leader: dict[int, dict[str, list[TopicPartition]]] = defaultdict(lambda: defaultdict(list))
            for target in waiting:
                by_leader[(await self._cluster.partition(*target)).leader][target.topic].append(target)
            for node_id, topics in by_leader.items():
                answer = await self._cluster.call(request(topics), node_id=node_id)
                raise_for_code(getattr(answer, "error_code", 0), getattr(answer, "error_message", None))
                for topic in answer.topics:
                    for told in topic.partitions:
                        raise_for_code(told.error_code, told.error_message)
                        target = TopicPartition(topic.name, told.partition_index)
                        take(target, told)
                        waiting.pop(target, None)

        try:
            await self._cluster.call_with_retries(ask)
        except GroupIdNotFound as error:
            raise SubscriptionNotFound(error.message) from None

    async def _targets(self, topic: str) -> Sequence[TopicPartition]:
        view = await self._cluster.call_with_retries(partial(self._cluster.current_topic, topic))
        return [TopicPartition(topic, partition.partition) for partition in view.partitions]


def _resource(topic: str, name: str) -> Resource:
    return SUBSCRIPTION_RESOURCE, subscription_resource_name(topic, name)
