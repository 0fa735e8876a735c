"""Offsets of share groups: DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets.

- The leaders of the partitions know the offsets of a share group. The coordinator of the group requests them there,
  from this broker or from others, in one attempt; an error of a leader applies to each of its partitions.
- The coordinator rejects changes of the offsets of a group that has members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

from headrace.broker.cluster.peers import Peers
from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.broker.groups.group_shard import GroupShard
from headrace.broker.handlers import ReportErrors, RequestContext, internal_context, report_error
from headrace.broker.queues.subscription_admin import SubscriptionAdminRequests
from headrace.broker.topic_catalogue import Catalogue
from headrace.client.errors import error_of_code, raise_for_code
from headrace.model.errors import CoordinatorNotAvailable, GroupIdNotFound, HeadraceError, UnknownTopicOrPartition
from headrace.model.ids import ZERO_ID
from headrace.model.names import ACKS_PREFIX, check_group_id
from headrace.runtime.inline_start import switch_to_task
from headrace.wire.messages.queues import (
    AlterSubscriptionsPartition,
    AlterSubscriptionsRequest,
    AlterSubscriptionsTopic,
    DescribedSubscription,
    DescribeSubscriptionsRequest,
    DescribeSubscriptionsTopic,
)
from headrace.wire.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)

TopicPartition = tuple[str, int]

_REQUEST_SECONDS = 10.0
_CONNECTION_KEY = "subscriptions"
_CREATE, _SEEK, _DELETE = range(3)
_NO_OFFSET = -1


class ShareOffsetsLookup:
    def __init__(self, catalogue: Catalogue, admin: SubscriptionAdminRequests, peers: Peers, node_id: int) -> None:
        self._catalogue = catalogue
        self._admin = admin
        self._peers = peers
        self._node_id = node_id

    def known_partitions(self) -> list[TopicPartition]:
        """Return all partitions in which a group may have offsets."""
        owners = [topic for topic in self._catalogue if self._catalogue.colocated_topics.find(topic.name, ACKS_PREFIX)]
        return [(topic.name, index) for topic in owners for index in range(topic.partition_count)]

    async def describe(
        self, group_id: str, partitions: Collection[TopicPartition], context: RequestContext
    ) -> dict[TopicPartition, DescribedSubscription | HeadraceError | None]:
        """Return the offsets of a group, None for partitions where it has none."""
        results, errors = await self._describe([group_id], partitions, context)
        offsets = {partition: one for partition, result in results.items() for one in result.subscriptions}
        return {partition: errors.get(partition, offsets.get(partition)) for partition in partitions}

    async def names(self, partitions: Collection[TopicPartition]) -> frozenset[str]:
        """Return all subscriptions of these partitions; raise unless every leader has responded."""
        results, errors = await self._describe(None, partitions, internal_context(0, _CONNECTION_KEY))
        for error in errors.values():
            raise error
        return frozenset(one.subscription for result in results.values() for one in result.subscriptions)

    async def seek(
        self, group_id: str, offsets: Mapping[TopicPartition, int], context: RequestContext
    ) -> dict[TopicPartition, HeadraceError | None]:
        """Set the offsets of a group, also in partitions where it has none. Messages that it has settled at or after an
        offset are delivered again."""
        errors = await self._alter(group_id, _CREATE, offsets, context)
        created = {partition: offset for partition, offset in offsets.items() if partition not in errors}
        errors |= await self._alter(group_id, _SEEK, created, context)
        return {partition: errors.get(partition) for partition in offsets}

    async def delete(
        self, group_id: str, partitions: Iterable[TopicPartition], context: RequestContext
    ) -> dict[TopicPartition, HeadraceError]:
        """Delete the group's state in these partitions; return the errors."""
        errors = await self._alter(group_id, _DELETE, dict.fromkeys(partitions, -1), context)
        return {partition: error for partition, error in errors.items() if not isinstance(error, GroupIdNotFound)}

    async def forget(self, group_id: str, context: RequestContext) -> None:
        """Delete the group's state in all partitions."""
        for error in (await self.delete(group_id, self.known_partitions(), context)).values():
            raise CoordinatorNotAvailable(f"deleting the acknowledgements of {group_id} failed: {error.message}")

    async def _describe(
        self, names: list[str] | None, partitions: Iterable[TopicPartition], context: RequestContext
    ) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, HeadraceError]]:
        def request(named: Mapping[str, list[int]]) -> DescribeSubscriptionsRequest:
            topics = [DescribeSubscriptionsTopic(topic, indexes) for topic, indexes in named.items()]
            return DescribeSubscriptionsRequest(subscriptions=names, topics=topics)

        return await self._request_leaders(partitions, request, context)

    async def _alter(
        self, group_id: str, action: int, offsets: Mapping[TopicPartition, int], context: RequestContext
    ) -> dict[TopicPartition, HeadraceError]:
        def request(named: Mapping[str, list[int]]) -> AlterSubscriptionsRequest:
            topics = [
                AlterSubscriptionsTopic(
                    topic,
                    [AlterSubscriptionsPartition(index, offset=offsets[topic, index]) for index in indexes],
                )
                for topic, indexes in named.items()
            ]
            return AlterSubscriptionsRequest(subscription=group_id, action=action, topics=topics)

        return (await self._request_leaders(offsets, request, context))[1]

    async def _request_leaders(
        self,
        partitions: Iterable[TopicPartition],
        request: Callable[[Mapping[str, list[int]]], Any],
        context: RequestContext,
    ) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, HeadraceError]]:
        """Send a request to each leader; return the results and the errors by partition."""
        results: dict[TopicPartition, Any] = {}
        errors: dict[TopicPartition, HeadraceError] = {}
        by_leader: dict[int, dict[str, list[int]]] = {}
        for topic, index in partitions:
            try:
                leader = self._catalogue.partition_record(topic, index).leader
            except HeadraceError as error:
                errors[topic, index] = error
            else:
                by_leader.setdefault(leader, {}).setdefault(topic, []).append(index)

        async def request_leader(node_id: int, named: Mapping[str, list[int]]) -> None:
            try:
                response = await self._call(node_id, request(named), context)
            except HeadraceError as error:
                errors.update({(topic, index): error for topic, indexes in named.items() for index in indexes})
                return
            for topic in response.topics:
                for result in topic.partitions:
                    partition = topic.name, result.partition_index
                    if result.error_code:
                        errors[partition] = error_of_code(result.error_code, result.error_message)
                    else:
                        results[partition] = result

        await switch_to_task()
        async with asyncio.TaskGroup() as tasks:
            for node_id, named in by_leader.items():
                tasks.create_task(request_leader(node_id, named))
        return results, errors

    async def _call(self, node_id: int, request: Any, context: RequestContext) -> Any:
        alters = isinstance(request, AlterSubscriptionsRequest)
        if node_id == self._node_id:
            return await (self._admin.alter if alters else self._admin.describe)(request, context)
        response = await self._peers.call(
            node_id, request, timeout_seconds=_REQUEST_SECONDS, connection_key=_CONNECTION_KEY
        )
        if alters:
            raise_for_code(response.error_code, response.error_message)
        return response


class ShareGroupOffsets:
    def __init__(self, coordinator: GroupCoordinator, catalogue: Catalogue, offsets_lookup: ShareOffsetsLookup) -> None:
        self._coordinator = coordinator
        self._catalogue = catalogue
        self._offsets_lookup = offsets_lookup

    async def describe(
        self, request: DescribeShareGroupOffsetsRequest, context: RequestContext
    ) -> DescribeShareGroupOffsetsResponse:
        return DescribeShareGroupOffsetsResponse(groups=[await self._describe(one, context) for one in request.groups])

    async def alter(
        self, request: AlterShareGroupOffsetsRequest, context: RequestContext
    ) -> AlterShareGroupOffsetsResponse:
        """Set offsets. A missing group is created, so that its start can be set before its first member joins."""
        group_id = request.group_id
        offsets = {
            (topic.topic_name, one.partition_index): one.start_offset
            for topic in request.topics
            for one in topic.partitions
        }
        groups = await self._coordinator.ensure(check_group_id(group_id))
        _ensure_no_members(groups, group_id)
        await groups.shares.ensure(group_id)
        known = {partition: offset for partition, offset in offsets.items() if self._exists(partition)}
        errors = await self._offsets_lookup.seek(group_id, known, context)
        response = AlterShareGroupOffsetsResponse()
        for topic in request.topics:
            topic_response = AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, topic_id=self._id(topic.topic_name)
            )
            response.responses.append(topic_response)
            for one in topic.partitions:
                result = AlterShareGroupOffsetsResponsePartition(partition_index=one.partition_index)
                partition = topic.topic_name, one.partition_index
                alter_error = errors[partition] if partition in errors else _unknown_partition(partition)
                if alter_error is not None:
                    report_error(result, alter_error)
                topic_response.partitions.append(result)
        return response

    async def delete(
        self, request: DeleteShareGroupOffsetsRequest, context: RequestContext
    ) -> DeleteShareGroupOffsetsResponse:
        group_id = request.group_id
        groups = self._coordinator.of(group_id)
        if group_id not in groups.shares:
            raise GroupIdNotFound(f"Share group {group_id} not found.")
        _ensure_no_members(groups, group_id)
        partitions = [partition for topic in request.topics for partition in self._partitions(topic.topic_name)]
        errors = await self._offsets_lookup.delete(group_id, partitions, context)
        response = DeleteShareGroupOffsetsResponse()
        for topic in request.topics:
            name = topic.topic_name
            result = DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=self._id(name))
            topic_errors = [one for (topic_name, _), one in errors.items() if topic_name == name]
            if self._catalogue.find(name) is None:
                topic_errors.append(_unknown_partition((name, 0)))
            if topic_errors:
                report_error(result, topic_errors[0])
            response.responses.append(result)
        return response

    async def _describe(
        self, requested: DescribeShareGroupOffsetsRequestGroup, context: RequestContext
    ) -> DescribeShareGroupOffsetsResponseGroup:
        group_id = requested.group_id
        description = DescribeShareGroupOffsetsResponseGroup(group_id=group_id)
        with ReportErrors(description):
            _ensure_share_group(self._coordinator.of(group_id), group_id)
            if requested.topics is None:
                known = self._offsets_lookup.known_partitions()
                offsets = await self._offsets_lookup.describe(group_id, known, context)
                topics_read = {topic for (topic, _), offset in offsets.items() if offset is not None}
                partitions: Iterable[TopicPartition] = [one for one in offsets if one[0] in topics_read]
            else:
                partitions = [(topic.topic_name, index) for topic in requested.topics for index in topic.partitions]
                known = [partition for partition in partitions if self._exists(partition)]
                offsets = await self._offsets_lookup.describe(group_id, known, context)
            topics: dict[str, DescribeShareGroupOffsetsResponseTopic] = {}
            for name, index in partitions:
                topic = topics.setdefault(
                    name, DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=self._id(name))
                )
                topic.partitions.append(self._described((name, index), offsets.get((name, index))))
            description.topics = list(topics.values())
        return description

    def _described(
        self, partition: TopicPartition, offset: DescribedSubscription | HeadraceError | None
    ) -> DescribeShareGroupOffsetsResponsePartition:
        """Describe a partition. One without state of the group, or one that does not exist, has no offset."""
        result = DescribeShareGroupOffsetsResponsePartition(partition_index=partition[1], start_offset=_NO_OFFSET)
        if isinstance(offset, HeadraceError):
            report_error(result, offset)
        elif offset is not None:
            result.start_offset, result.lag = offset.floor, offset.backlog
            result.leader_epoch = self._catalogue.partition_record(*partition).leader_epoch
        return result

    def _partitions(self, name: str) -> list[TopicPartition]:
        topic = self._catalogue.find(name)
        return [] if topic is None else [(name, index) for index in range(topic.partition_count)]

    def _exists(self, partition: TopicPartition) -> bool:
        return partition in self._partitions(partition[0])

    def _id(self, name: str) -> UUID:
        topic = self._catalogue.find(name)
        return ZERO_ID if topic is None else topic.id


def _ensure_share_group(groups: GroupShard, group_id: str) -> None:
    if groups.find(group_id) is not None:
        raise GroupIdNotFound(f"Group {group_id} is not a share group.")


def _ensure_no_members(groups: GroupShard, group_id: str) -> None:
    _ensure_share_group(groups, group_id)
    group = groups.shares.groups.get(group_id)
    if group is not None:
        group.ensure_no_members()


def _unknown_partition(partition: TopicPartition) -> HeadraceError:
    return UnknownTopicOrPartition(f"partition {partition[0]}-{partition[1]} does not exist")
