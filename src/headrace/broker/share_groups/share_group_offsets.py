"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets, for the coordinator of the group.

The leaders of the partitions know the offsets of a share group, so the coordinator requests them there. The coordinator
rejects changes of the offsets of a group that has members.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.broker.groups.group_shard import GroupShard
from headrace.broker.handlers import RequestContext
from headrace.broker.share_groups.share_offsets_lookup import ShareOffsetsLookup, SharePartitionOffset, TopicPartition
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import GroupIdNotFound, HeadraceError, UnknownTopicOrPartition
from headrace.model.ids import ZERO_ID
from headrace.model.names import check_group_id
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
            answer.leader_epoch = self._catalogue.partition_record(*place).leader_epoch
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
