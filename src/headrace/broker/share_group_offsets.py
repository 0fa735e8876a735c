"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets, for the coordinator of the group.

The leaders of the partitions know the offsets of a share group, so the coordinator requests them there. The coordinator
rejects changes of the offsets of a group that has members.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from headrace.broker.catalogue import Catalogue
from headrace.broker.context import RequestContext
from headrace.broker.coordinator import Coordinator
from headrace.broker.led_groups import LedGroups
from headrace.broker.share_standings import Place, ShareStandings, Standing
from headrace.model.errors import GroupIdNotFound, HeadraceError, UnknownTopicOrPartition
from headrace.model.ids import ZERO_ID
from headrace.model.names import check_group_id
from headrace.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from headrace.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from headrace.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)

_NOWHERE = -1


class ShareGroupOffsets:
    def __init__(self, coordinator: Coordinator, catalogue: Catalogue, standings: ShareStandings) -> None:
        self._coordinator = coordinator
        self._catalogue = catalogue
        self._standings = standings

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
            _ensure_vacant(groups, group_id)
            await groups.shares.ensure(group_id)
            known = {place: offset for place, offset in offsets.items() if self._exists(place)}
            errors = await self._standings.seek(group_id, known, context)
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
                refusal = errors[place] if place in errors else _unknown(place)
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
            _ensure_vacant(groups, group_id)
            places = [place for topic in request.topics for place in self._places(topic.topic_name)]
            errors = await self._standings.delete(group_id, places, context)
        except HeadraceError as error:
            return DeleteShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)
        response = DeleteShareGroupOffsetsResponse()
        for topic in request.topics:
            name = topic.topic_name
            answer = DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=self._id(name))
            refusals = [error for place, error in errors.items() if place[0] == name and error is not None]
            if self._catalogue.find(name) is None:
                refusals.append(_unknown((name, 0)))
            for refusal in refusals[:1]:
                answer.error_code, answer.error_message = refusal.code, refusal.message
            response.responses.append(answer)
        return response

    async def _describe(
        self, asked: DescribeShareGroupOffsetsRequestGroup, context: RequestContext
    ) -> DescribeShareGroupOffsetsResponseGroup:
        group_id = asked.group_id
        answer = DescribeShareGroupOffsetsResponseGroup(group_id=group_id)
        try:
            _ensure_share(self._coordinator.of(group_id), group_id)
            if asked.topics is None:
                standings = await self._standings.describe(group_id, self._standings.known_places(), context)
                been = {topic for (topic, _), standing in standings.items() if standing is not None}
                places: Iterable[Place] = [place for place in standings if place[0] in been]
            else:
                places = [(topic.topic_name, index) for topic in asked.topics for index in topic.partitions]
                known = [place for place in places if self._exists(place)]
                standings = await self._standings.describe(group_id, known, context)
        except HeadraceError as error:
            answer.error_code, answer.error_message = error.code, error.message
            return answer
        topics: dict[str, DescribeShareGroupOffsetsResponseTopic] = {}
        for place in places:
            topic = topics.setdefault(
                place[0], DescribeShareGroupOffsetsResponseTopic(topic_name=place[0], topic_id=self._id(place[0]))
            )
            topic.partitions.append(self._partition(place, standings.get(place)))
        answer.topics = list(topics.values())
        return answer

    def _partition(
        self, place: Place, standing: Standing | HeadraceError | None
    ) -> DescribeShareGroupOffsetsResponsePartition:
        """Where the group has not been, or what does not exist, has no offset."""
        answer = DescribeShareGroupOffsetsResponsePartition(partition_index=place[1], start_offset=_NOWHERE)
        if isinstance(standing, HeadraceError):
            answer.error_code, answer.error_message = standing.code, standing.message
        elif standing is not None:
            answer.start_offset, answer.lag = standing.floor, standing.backlog
            answer.leader_epoch = self._catalogue.place(*place).leader_epoch
        return answer

    def _places(self, name: str) -> list[Place]:
        topic = self._catalogue.find(name)
        return [] if topic is None else [(name, index) for index in range(topic.partition_count)]

    def _exists(self, place: Place) -> bool:
        return place in self._places(place[0])

    def _id(self, name: str) -> UUID:
        topic = self._catalogue.find(name)
        return ZERO_ID if topic is None else topic.id


def _ensure_share(groups: LedGroups, group_id: str) -> None:
    if groups.find(group_id) is not None:
        raise GroupIdNotFound(f"Group {group_id} is not a share group.")


def _ensure_vacant(groups: LedGroups, group_id: str) -> None:
    _ensure_share(groups, group_id)
    group = groups.shares.groups.get(group_id)
    if group is not None:
        group.ensure_vacant()


def _unknown(place: Place) -> HeadraceError:
    return UnknownTopicOrPartition(f"partition {place[0]}-{place[1]} does not exist")
