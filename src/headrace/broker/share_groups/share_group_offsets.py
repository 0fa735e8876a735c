"""Offsets of share groups: DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from headrace.broker.cluster.peers import Peers
from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.broker.groups.group_shard import GroupShard
from headrace.broker.queues.subscription_admin import SubscriptionAdminRequests
from headrace.broker.request_context import RequestContext
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import CoordinatorNotAvailable, GroupIdNotFound, HeadraceError, UnknownTopicOrPartition
from headrace.model.ids import ZERO_ID
from headrace.model.names import ACKS_PREFIX, check_group_id
from headrace.runtime.inline_start import switch_to_task
from headrace.wire.messages.queues import (
    AlterSubscriptionsPartition,
    AlterSubscriptionsRequest,
    AlterSubscriptionsTopic,
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

# Where share groups stand, asked of those who know: the leaders of the partitions, here or at other brokers.
#
# One call is one attempt; what a leader refuses, or cannot be asked, is told for each of its partitions.


TopicPartition = tuple[str, int]

_REQUEST_SECONDS = 10.0
_CONNECTION_KEY = "subscriptions"
_CREATE, _SEEK, _DELETE = range(3)
_INTERNAL_CONTEXT = RequestContext(0, _CONNECTION_KEY, "", "", lambda _is_held: None, lambda: None)
"""Of a request that the broker makes for itself."""


class SharePartitionOffset(NamedTuple):
    floor: int
    backlog: int


class ShareOffsetsLookup:
    def __init__(self, catalogue: Catalogue, admin: SubscriptionAdminRequests, peers: Peers, node_id: int) -> None:
        self._catalogue = catalogue
        self._admin = admin
        self._peers = peers
        self._node_id = node_id

    def known_partitions(self) -> list[TopicPartition]:
        """All partitions in which a group may stand."""
        owners = [topic for topic in self._catalogue if self._catalogue.colocated_topics.find(topic.name, ACKS_PREFIX)]
        return [(topic.name, index) for topic in owners for index in range(topic.partition_count)]

    async def describe(
        self, group_id: str, places: Collection[TopicPartition], context: RequestContext
    ) -> dict[TopicPartition, SharePartitionOffset | HeadraceError | None]:
        """None where the group has not been."""

        def request(named: Mapping[str, list[int]]) -> DescribeSubscriptionsRequest:
            topics = [DescribeSubscriptionsTopic(topic, indexes) for topic, indexes in named.items()]
            return DescribeSubscriptionsRequest(subscriptions=[group_id], topics=topics)

        answers, errors = await self._ask(places, request, context)
        offsets_lookup: dict[TopicPartition, SharePartitionOffset | HeadraceError | None] = dict.fromkeys(places)
        offsets_lookup.update(errors)
        for place, answer in answers.items():
            for one in answer.subscriptions:
                offsets_lookup[place] = SharePartitionOffset(one.floor, one.backlog)
        return offsets_lookup

    async def names(self, places: Collection[TopicPartition]) -> frozenset[str]:
        """All subscriptions of these partitions. Raises unless every leader has responded."""

        def request(named: Mapping[str, list[int]]) -> DescribeSubscriptionsRequest:
            topics = [DescribeSubscriptionsTopic(topic, indexes) for topic, indexes in named.items()]
            return DescribeSubscriptionsRequest(subscriptions=None, topics=topics)

        responses, errors = await self._ask(places, request, _INTERNAL_CONTEXT)
        for error in errors.values():
            raise error
        return frozenset(one.subscription for response in responses.values() for one in response.subscriptions)

    async def seek(
        self, group_id: str, offsets: Mapping[TopicPartition, int], context: RequestContext
    ) -> dict[TopicPartition, HeadraceError | None]:
        """Let the group go on from these offsets, also where it has not been; what it has settled behind them is
        delivered again."""
        _, errors = await self._alter(group_id, _CREATE, offsets, context)
        made = {place: offset for place, offset in offsets.items() if place not in errors}
        _, more = await self._alter(group_id, _SEEK, made, context)
        return {place: errors.get(place, more.get(place)) for place in offsets}

    async def delete(
        self, group_id: str, places: Iterable[TopicPartition], context: RequestContext
    ) -> dict[TopicPartition, HeadraceError | None]:
        """Let the group forget these, as if it had never been there."""
        _, errors = await self._alter(group_id, _DELETE, dict.fromkeys(places, -1), context)
        return {place: error for place, error in errors.items() if not isinstance(error, GroupIdNotFound)}

    async def forget(self, group_id: str, context: RequestContext) -> None:
        """The same of all that it has been at."""
        for error in (await self.delete(group_id, self.known_partitions(), context)).values():
            if error is not None:
                raise CoordinatorNotAvailable(f"deleting the acknowledgements of {group_id} failed: {error.message}")

    async def _alter(
        self, group_id: str, action: int, offsets: Mapping[TopicPartition, int], context: RequestContext
    ) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, HeadraceError]]:
        def request(named: Mapping[str, list[int]]) -> AlterSubscriptionsRequest:
            topics = [
                AlterSubscriptionsTopic(
                    topic,
                    [AlterSubscriptionsPartition(index, offset=offsets[topic, index]) for index in indexes],
                )
                for topic, indexes in named.items()
            ]
            return AlterSubscriptionsRequest(subscription=group_id, action=action, topics=topics)

        return await self._ask(offsets, request, context)

    async def _ask(
        self,
        places: Iterable[TopicPartition],
        request: Callable[[Mapping[str, list[int]]], Any],
        context: RequestContext,
    ) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, HeadraceError]]:
        """The leaders' answers by partition, and what was refused."""
        answers: dict[TopicPartition, Any] = {}
        errors: dict[TopicPartition, HeadraceError] = {}
        by_leader: dict[int, dict[str, list[int]]] = {}
        for topic, index in places:
            try:
                leader = self._catalogue.place(topic, index).leader
            except HeadraceError as error:
                errors[topic, index] = error
            else:
                by_leader.setdefault(leader, {}).setdefault(topic, []).append(index)

        async def ask_leader(node_id: int, named: Mapping[str, list[int]]) -> None:
            try:
                _split_errors(await self._call(node_id, request(named), context), answers, errors)
            except HeadraceError as error:
                errors.update({(topic, index): error for topic, indexes in named.items() for index in indexes})

        await switch_to_task()
        async with asyncio.TaskGroup() as tasks:
            for node_id, named in by_leader.items():
                tasks.create_task(ask_leader(node_id, named))
        return answers, errors

    async def _call(self, node_id: int, request: Any, context: RequestContext) -> Any:
        if node_id != self._node_id:
            return await self._peers.call(
                node_id, request, timeout_seconds=_REQUEST_SECONDS, connection_key=_CONNECTION_KEY
            )
        if isinstance(request, AlterSubscriptionsRequest):
            return await self._admin.alter(request, context)
        return await self._admin.describe(request, context)


def _split_errors(
    response: Any, answers: dict[TopicPartition, Any], errors: dict[TopicPartition, HeadraceError]
) -> None:
    from headrace.client.errors import error_of_code  # imported on first use: keeps startup fast

    for topic in response.topics:
        for answer in topic.partitions:
            place = topic.name, answer.partition_index
            if answer.error_code:
                errors[place] = error_of_code(answer.error_code, answer.error_message)
            else:
                answers[place] = answer


# DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets, for the coordinator of the group.
#
# The leaders of the partitions know the offsets of a share group, so the coordinator requests them there. The coordinator
# rejects changes of the offsets of a group that has members.


_NO_OFFSET = -1


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
        """A group that does not exist is made: so it can be told where to begin before its first member comes."""
        group_id = request.group_id
        offsets = {
            (topic.topic_name, one.partition_index): one.start_offset
            for topic in request.topics
            for one in topic.partitions
        }
        try:
            groups = await self._coordinator.ensure(check_group_id(group_id))
            _ensure_no_members(groups, group_id)
            await groups.shares.ensure(group_id)
            known = {place: offset for place, offset in offsets.items() if self._exists(place)}
            errors = await self._offsets_lookup.seek(group_id, known, context)
        except HeadraceError as error:
            return AlterShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)
        response = AlterShareGroupOffsetsResponse()
        for topic in request.topics:
            answers = AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, topic_id=self._id(topic.topic_name)
            )
            response.responses.append(answers)
            for one in topic.partitions:
                answer = AlterShareGroupOffsetsResponsePartition(partition_index=one.partition_index)
                place = topic.topic_name, one.partition_index
                refusal = errors[place] if place in errors else _unknown_partition(place)
                if refusal is not None:
                    answer.error_code, answer.error_message = refusal.code, refusal.message
                answers.partitions.append(answer)
        return response

    async def delete(
        self, request: DeleteShareGroupOffsetsRequest, context: RequestContext
    ) -> DeleteShareGroupOffsetsResponse:
        group_id = request.group_id
        try:
            groups = self._coordinator.of(group_id)
            if group_id not in groups.shares:
                raise GroupIdNotFound(f"Share group {group_id} not found.")
            _ensure_no_members(groups, group_id)
            places = [place for topic in request.topics for place in self._places(topic.topic_name)]
            errors = await self._offsets_lookup.delete(group_id, places, context)
        except HeadraceError as error:
            return DeleteShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)
        response = DeleteShareGroupOffsetsResponse()
        for topic in request.topics:
            name = topic.topic_name
            answer = DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=self._id(name))
            refusals = [error for place, error in errors.items() if place[0] == name and error is not None]
            if self._catalogue.find(name) is None:
                refusals.append(_unknown_partition((name, 0)))
            for refusal in refusals[:1]:
                answer.error_code, answer.error_message = refusal.code, refusal.message
            response.responses.append(answer)
        return response

    async def _describe(
        self, requested: DescribeShareGroupOffsetsRequestGroup, context: RequestContext
    ) -> DescribeShareGroupOffsetsResponseGroup:
        group_id = requested.group_id
        answer = DescribeShareGroupOffsetsResponseGroup(group_id=group_id)
        try:
            _ensure_share_group(self._coordinator.of(group_id), group_id)
            if requested.topics is None:
                offsets_lookup = await self._offsets_lookup.describe(
                    group_id, self._offsets_lookup.known_partitions(), context
                )
                been = {
                    topic for (topic, _), partition_offset in offsets_lookup.items() if partition_offset is not None
                }
                places: Iterable[TopicPartition] = [place for place in offsets_lookup if place[0] in been]
            else:
                places = [(topic.topic_name, index) for topic in requested.topics for index in topic.partitions]
                known = [place for place in places if self._exists(place)]
                offsets_lookup = await self._offsets_lookup.describe(group_id, known, context)
        except HeadraceError as error:
            answer.error_code, answer.error_message = error.code, error.message
            return answer
        topics: dict[str, DescribeShareGroupOffsetsResponseTopic] = {}
        for place in places:
            topic = topics.setdefault(
                place[0], DescribeShareGroupOffsetsResponseTopic(topic_name=place[0], topic_id=self._id(place[0]))
            )
            topic.partitions.append(self._partition(place, offsets_lookup.get(place)))
        answer.topics = list(topics.values())
        return answer

    def _partition(
        self, place: TopicPartition, partition_offset: SharePartitionOffset | HeadraceError | None
    ) -> DescribeShareGroupOffsetsResponsePartition:
        """Where the group has not been, or what does not exist, has no offset."""
        answer = DescribeShareGroupOffsetsResponsePartition(partition_index=place[1], start_offset=_NO_OFFSET)
        if isinstance(partition_offset, HeadraceError):
            answer.error_code, answer.error_message = partition_offset.code, partition_offset.message
        elif partition_offset is not None:
            answer.start_offset, answer.lag = partition_offset.floor, partition_offset.backlog
            answer.leader_epoch = self._catalogue.place(*place).leader_epoch
        return answer

    def _places(self, name: str) -> list[TopicPartition]:
        topic = self._catalogue.find(name)
        return [] if topic is None else [(name, index) for index in range(topic.partition_count)]

    def _exists(self, place: TopicPartition) -> bool:
        return place in self._places(place[0])

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


def _unknown_partition(place: TopicPartition) -> HeadraceError:
    return UnknownTopicOrPartition(f"partition {place[0]}-{place[1]} does not exist")
