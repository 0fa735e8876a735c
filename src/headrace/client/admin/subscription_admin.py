"""Administer subscriptions: create, describe, seek, configure and delete them; query the state of messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from headrace.client.admin.config_requests import (
    alter_configs,
    configured_resources,
    describe_configs,
    replace_configs,
    subscription_resource,
)
from headrace.client.admin.topic_admin import ReportedConfigSource
from headrace.client.cluster import Cluster
from headrace.client.errors import SubscriptionNotFound, raise_for_code
from headrace.client.fetch.consumer import Consumer, ConsumerSettings
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.metadata import TopicPartition, partitions_by_topic
from headrace.client.queues.settling import SETTLED, message_statuses
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
    """Where a subscription begins: an offset, START, END, or the first message at or after a timestamp."""

    offset: int = END
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionBacklog:
    """The state of a subscription in one partition; the backlog includes leased, waiting and dying messages."""

    subscription: str
    target: TopicPartition
    floor: int
    end: int
    backlog: int
    leased: int
    waiting: int
    dying: int
    oldest_ms: int | None


class PeekedRecord(NamedTuple):
    record: ConsumedRecord
    status: SubscriptionStatus


class SubscriptionAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list(self) -> Sequence[PartitionBacklog]:
        """All subscriptions of all topics, by name, topic and partition."""
        return await self.describe()

    async def describe(
        self, name: str | None = None, topics: Iterable[str] | None = None
    ) -> Sequence[PartitionBacklog]:
        """The named subscription, or all, in these topics, or in all; by name, topic and partition. Raises
        SubscriptionNotFound if the named one does not exist."""
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
        """Create the subscription in every partition of the topic that does not have it; returns the ack floors.

        A new subscription gets exactly the given configuration; of an existing one, the given settings are changed. In
        partitions that are added concurrently, it begins with their first message.
        """
        targets = await self._targets(topic)
        if await self._describe(name, targets):
            if configs:
                await self.configure(topic, name, configs)
        elif configs:
            await replace_configs(self._cluster, subscription_resource(topic, name), configs)
        else:
            # No settings are changed, so that a concurrent configuration of the same new subscription is kept.
            await alter_configs(self._cluster, subscription_resource(topic, name), {})
        floors = {**await self._alter(name, _CREATE, targets, position)}
        # A partition that was added since may have inherited subscriptions before this one existed.
        added = sorted({*await self._targets(topic)} - {*targets})
        return floors | {**await self._alter(name, _CREATE, added, Position(START))}

    async def exists(self, topic: str, name: str) -> bool:
        return bool(await self._describe(name, await self._targets(topic)))

    async def seek(
        self, topic: str, name: str, position: Position, partitions: Sequence[int] = ()
    ) -> Mapping[TopicPartition, int]:
        """Continue at another position, in these partitions or in all; ends all leases. Returns the ack floors."""
        targets = [TopicPartition(topic, partition) for partition in partitions] or await self._targets(topic)
        return await self._alter(name, _SEEK, targets, position)

    async def configs(self, topic: str, name: str, *, with_defaults: bool = False) -> Mapping[str, str | None]:
        """The settings of a subscription, by default without those that have their default; secret values are None."""
        described = await describe_configs(self._cluster, subscription_resource(topic, name))
        return {
            one.name: one.value
            for one in described
            if with_defaults or one.config_source != ReportedConfigSource.DEFAULT
        }

    async def configure(
        self, topic: str, name: str, set_to: Mapping[str, str], back_to_default: Iterable[str] = ()
    ) -> None:
        await alter_configs(
            self._cluster, subscription_resource(topic, name), {**set_to, **dict.fromkeys(back_to_default)}
        )

    async def delete(self, topic: str, name: str) -> None:
        """Delete a subscription with its state and configuration in all partitions."""
        known = {one.target for one in await self.describe(name, [topic])}
        await self._clear_group_configs(topic, {name})
        await self._alter(name, _DELETE, sorted(known), Position())

    async def clear_group_configs(self, topic: str) -> None:
        """Before a topic is deleted: delete the configurations of groups whose last subscription is in it."""
        if await configured_resources(self._cluster, GROUP_RESOURCE):
            names = {one.subscription for one in await self._describe(None, await self._targets(topic))}
            await self._clear_group_configs(topic, names)

    async def _clear_group_configs(self, topic: str, names: Set[str]) -> None:
        """The configuration of a group is deleted with the last subscription that uses it. A subscription with its own
        configuration does not delete it: it may belong to a tenant who must not change the group."""
        names &= await configured_resources(self._cluster, GROUP_RESOURCE)
        own = await configured_resources(self._cluster, SUBSCRIPTION_RESOURCE) if names else frozenset()
        for name in sorted(names):
            is_own = subscription_resource_name(topic, name) in own
            if not is_own and {one.target.topic for one in await self.describe(name)} == {topic}:
                await replace_configs(self._cluster, (GROUP_RESOURCE, name), {})

    async def status(self, message: MessageId, names: Sequence[str] | None = None) -> Sequence[SubscriptionStatus]:
        """The state and history of a message for each subscription."""
        target = TopicPartition(message.topic, message.partition)
        return await message_statuses(self._cluster, target, [message.offset], names, with_history=True)

    async def peek(self, topic: str, name: str) -> AsyncGenerator[PeekedRecord, None]:
        """Unsettled messages, oldest first, partition by partition, without leasing them."""
        for backlog in await self.describe(name, [topic]):
            if backlog.backlog:
                async for peeked in self._peek(backlog):
                    yield peeked

    # Requests

    async def _peek(self, backlog: PartitionBacklog) -> AsyncIterator[PeekedRecord]:
        target = backlog.target
        settings = ConsumerSettings(commit_seconds=None)
        async with Consumer(self._cluster, partitions={target: backlog.floor}, settings=settings) as consumer:
            reached = backlog.floor
            while reached < backlog.end:
                records = await consumer.poll(_PEEKED_AT_ONCE, _PEEK_SECONDS)
                if not records:
                    return  # only gaps are left
                reached = records[-1].offset + 1
                offsets = [record.offset for record in records if record.offset < backlog.end]
                statuses = await message_statuses(self._cluster, target, offsets, [backlog.subscription])
                by_offset = {status.offset: status for status in statuses}
                for record in records:
                    status = by_offset.get(record.offset)
                    if status is not None and status.state != SETTLED:
                        yield PeekedRecord(record, status)

    async def _describe(self, name: str | None, targets: Sequence[TopicPartition]) -> Sequence[PartitionBacklog]:
        names = None if name is None else [name]

        def request(topics: Mapping[str, Sequence[int]]) -> DescribeSubscriptionsRequest:
            requested = [DescribeSubscriptionsTopic(topic, [*partitions]) for topic, partitions in topics.items()]
            return DescribeSubscriptionsRequest(subscriptions=names, topics=requested)

        results = await self._call_leaders(targets, request)
        return [
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
            for target, result in results.items()
            for one in result.subscriptions
        ]

    async def _alter(
        self, name: str, action: int, targets: Sequence[TopicPartition], position: Position
    ) -> Mapping[TopicPartition, int]:
        timestamp_ms = _UNSET if position.timestamp_ms is None else position.timestamp_ms

        def request(topics: Mapping[str, Sequence[int]]) -> AlterSubscriptionsRequest:
            requested = [
                AlterSubscriptionsTopic(
                    topic, [AlterSubscriptionsPartition(index, position.offset, timestamp_ms) for index in partitions]
                )
                for topic, partitions in topics.items()
            ]
            return AlterSubscriptionsRequest(name, action, requested)

        return {target: result.floor for target, result in (await self._call_leaders(targets, request)).items()}

    async def _call_leaders(
        self, targets: Sequence[TopicPartition], request: Callable[[Mapping[str, Sequence[int]]], Any]
    ) -> Mapping[TopicPartition, Any]:
        """Send each leader the request for its partitions; partitions that succeeded are not retried."""
        results: dict[TopicPartition, Any] = {}

        async def attempt() -> None:
            waiting = [target for target in targets if target not in results]
            for node_id, there in (await self._cluster.partitions_by_leader(waiting)).items():
                response = await self._cluster.call(request(partitions_by_topic(there)), node_id=node_id)
                raise_for_code(getattr(response, "error_code", 0), getattr(response, "error_message", None))
                for topic in response.topics:
                    for result in topic.partitions:
                        raise_for_code(result.error_code, result.error_message)
                        results[TopicPartition(topic.name, result.partition_index)] = result

        try:
            await self._cluster.call_with_retries(attempt)
        except GroupIdNotFound as error:
            raise SubscriptionNotFound(error.message) from None
        return results

    async def _targets(self, topic: str) -> Sequence[TopicPartition]:
        view = await self._cluster.call_with_retries(partial(self._cluster.current_topic, topic))
        return [TopicPartition(topic, partition.partition) for partition in view.partitions]
