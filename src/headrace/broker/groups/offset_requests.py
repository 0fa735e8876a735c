"""OffsetCommit, OffsetFetch and OffsetDelete: the committed offsets of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.broker.groups.group_shard import GroupShard
from headrace.broker.handlers import ReportErrors, RequestContext
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.groups.group_offsets import CommittedOffset, OffsetCommitted, OffsetForgotten
from headrace.model.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    HeadraceError,
    IllegalGeneration,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from headrace.model.ids import ZERO_ID
from headrace.runtime.clock import Clock
from headrace.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

_TOPIC_IDS_SINCE = 10
_GROUPS_SINCE = 8
_GROUP_NOT_FOUND_SINCE = 9
_NO_COMMITTED_OFFSET = CommittedOffset(-1, -1, "", -1, -1, ZERO_ID)


class OffsetRequests:
    """OffsetFetch succeeds only while `session_valid`. Otherwise another broker may coordinate the group, and this
    broker does not know what was committed there: a response with an older offset, or none, would reset consumers."""

    def __init__(
        self, coordinator: GroupCoordinator, catalogue: Catalogue, clock: Clock, session_valid: Callable[[], bool]
    ) -> None:
        self._coordinator = coordinator
        self._catalogue = catalogue
        self._clock = clock
        self._session_valid = session_valid

    async def commit(self, request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
        response = OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=requested.partition_index)
                        for requested in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
        results = [result for topic in response.topics for result in topic.partitions]
        try:
            groups = await self._coordinator.ensure(request.group_id)
            groups.check_commit(
                request.group_id,
                request.member_id,
                request.generation_id_or_member_epoch,
                request.group_instance_id,
                GroupIdNotFound if context.version >= _GROUP_NOT_FOUND_SINCE else IllegalGeneration,
                self._partitions_by_id(request),
            )
            await groups.commit(request.group_id, self._events(request, groups, results, context.version))
        except HeadraceError as error:
            for result in results:
                result.error_code = result.error_code or error.code
        return response

    def _events(
        self,
        request: OffsetCommitRequest,
        groups: GroupShard,
        results: list[OffsetCommitResponsePartition],
        version: int,
    ) -> list[OffsetCommitted]:
        """Return the valid commits; the results of the others contain their errors."""
        events = []
        partitions = [(topic, requested) for topic in request.topics for requested in topic.partitions]
        for (topic, requested), result in zip(partitions, results, strict=True):
            with ReportErrors(result):
                known = self._topic(topic, requested.partition_index, version)
                events.append(self._event(groups, request, known, requested))
        return events

    async def fetch(self, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
        if context.version >= _GROUPS_SINCE:
            return OffsetFetchResponse(
                groups=[
                    await self._fetch_group(group, context.version, must_be_stable=request.require_stable)
                    for group in request.groups
                ]
            )
        response = OffsetFetchResponse()
        try:
            groups = self._coordinator.of(request.group_id)
            for name, indexes in self._wanted(groups, request.group_id, request.topics):
                found = self._found(groups, request.group_id, name, indexes, must_be_stable=request.require_stable)
                response.topics.append(OffsetFetchResponseTopic(name=name, partitions=found))
            await groups.settle()
            self._ensure_session_valid()
        except HeadraceError as error:
            return _fetch_error_response(request, error)
        return response

    def _ensure_session_valid(self) -> None:
        if not self._session_valid():
            raise CoordinatorNotAvailable("this broker may no longer be the coordinator of the group; retry")

    async def delete(self, request: OffsetDeleteRequest, _context: RequestContext) -> OffsetDeleteResponse:
        response = OffsetDeleteResponse()
        gone: list[OffsetForgotten] = []
        groups = self._coordinator.of(request.group_id)
        group = groups.find(request.group_id)
        if group is None:
            raise GroupIdNotFound(f"group {request.group_id} does not exist")
        group.check_offset_delete()
        for topic in request.topics:
            topic_result = OffsetDeleteResponseTopic(name=topic.name)
            for requested in topic.partitions:
                result = OffsetDeleteResponsePartition(partition_index=requested.partition_index)
                if group.is_subscribed_to(topic.name):
                    result.error_code = GroupSubscribedToTopic.code
                else:
                    event = groups.offsets.forget(request.group_id, topic.name, requested.partition_index)
                    if event is not None:
                        gone.append(event)
                    elif not _has_partition(self._catalogue.find(topic.name), requested.partition_index):
                        result.error_code = UnknownTopicOrPartition.code
                topic_result.partitions.append(result)
            response.topics.append(topic_result)
        await groups.forget(gone)
        return response

    def _partitions_by_id(self, request: OffsetCommitRequest) -> list[tuple[UUID, int]]:
        """Return the partitions of a commit by topic id; nonexistent topics have the zero id."""
        partitions = []
        for topic in request.topics:
            known = self._catalogue.find(topic.name)
            topic_id = topic.topic_id if topic.topic_id != ZERO_ID else ZERO_ID if known is None else known.id
            partitions += [(topic_id, requested.partition_index) for requested in topic.partitions]
        return partitions

    def _topic(self, topic: OffsetCommitRequestTopic, index: int, version: int) -> Topic:
        """Return the topic of the request, on any leader."""
        if version >= _TOPIC_IDS_SINCE:
            known = self._catalogue.find_by_id(topic.topic_id)
            if known is None:
                raise UnknownTopicId(f"topic id {topic.topic_id} does not exist")
        else:
            known = self._catalogue.topic(topic.name)
        if not _has_partition(known, index):
            raise UnknownTopicOrPartition(f"partition {known.name}-{index} does not exist")
        return known

    def _event(
        self, groups: GroupShard, request: OffsetCommitRequest, topic: Topic, requested: OffsetCommitRequestPartition
    ) -> OffsetCommitted:
        return groups.offsets.commit(
            request.group_id,
            topic.name,
            requested.partition_index,
            requested.committed_offset,
            now_ms=self._clock.now_ms(),
            leader_epoch=requested.committed_leader_epoch,
            metadata=requested.committed_metadata,
            topic_id=topic.id,
            retention_ms=request.retention_time_ms,
        )

    async def _fetch_group(
        self, requested: OffsetFetchRequestGroup, version: int, *, must_be_stable: bool
    ) -> OffsetFetchResponseGroup:
        """Return the response for one group when its content is durable."""
        response = OffsetFetchResponseGroup(group_id=requested.group_id)
        with ReportErrors(response):
            groups = self._coordinator.of(requested.group_id)
            groups.check_fetch(requested.group_id, requested.member_id, requested.member_epoch)
            topics = self._fetch_topics(groups, requested, version, must_be_stable=must_be_stable)
            await groups.settle()
            self._ensure_session_valid()
            response.topics = topics
        return response

    def _fetch_topics(
        self, groups: GroupShard, requested: OffsetFetchRequestGroup, version: int, *, must_be_stable: bool
    ) -> list[OffsetFetchResponseTopic]:
        if version >= _TOPIC_IDS_SINCE and requested.topics is not None:
            return [
                self._fetch_by_id(groups, requested.group_id, topic, must_be_stable=must_be_stable)
                for topic in requested.topics
            ]
        topic_result = []
        for name, indexes in self._wanted(groups, requested.group_id, requested.topics):
            topic = self._catalogue.find(name)
            if version >= _TOPIC_IDS_SINCE and topic is None:
                continue
            found = self._found(groups, requested.group_id, name, indexes, must_be_stable=must_be_stable)
            topic_id = topic.id if topic is not None else ZERO_ID
            topic_result.append(OffsetFetchResponseTopic(name=name, topic_id=topic_id, partitions=found))
        return topic_result

    def _fetch_by_id(
        self, groups: GroupShard, group_id: str, requested: OffsetFetchRequestTopic, *, must_be_stable: bool
    ) -> OffsetFetchResponseTopic:
        topic = self._catalogue.find_by_id(requested.topic_id)
        if topic is not None:
            found = self._found(
                groups, group_id, topic.name, requested.partition_indexes, must_be_stable=must_be_stable
            )
            return OffsetFetchResponseTopic(topic_id=requested.topic_id, partitions=found)
        return OffsetFetchResponseTopic(
            topic_id=requested.topic_id,
            partitions=[
                OffsetFetchResponsePartition(index, -1, -1, "", UnknownTopicId.code)
                for index in requested.partition_indexes
            ],
        )

    def _found(
        self, groups: GroupShard, group_id: str, topic: str, indexes: Iterable[int], *, must_be_stable: bool
    ) -> list[OffsetFetchResponsePartition]:
        topic_result = []
        for index in indexes:
            found, error_code = self._find(groups, group_id, topic, index, must_be_stable=must_be_stable)
            topic_result.append(
                OffsetFetchResponsePartition(index, found.offset, found.leader_epoch, found.metadata, error_code)
            )
        return topic_result

    def _find(
        self, groups: GroupShard, group_id: str, topic: str, index: int, *, must_be_stable: bool
    ) -> tuple[CommittedOffset, int]:
        """Return the committed offset and an error code. An offset that a transaction may change is unstable."""
        if must_be_stable and groups.offsets.is_pending(group_id, topic, index):
            return _NO_COMMITTED_OFFSET, UnstableOffsetCommit.code
        return self._committed(groups, group_id, topic, index) or _NO_COMMITTED_OFFSET, 0

    def _wanted(self, groups: GroupShard, group_id: str, topics: list[Any] | None) -> Iterable[tuple[str, list[int]]]:
        """Return the requested partitions, or all with committed offsets if the request lists no topics."""
        if topics is not None:
            return [(topic.name, topic.partition_indexes) for topic in topics]
        committed: dict[str, list[int]] = {}
        for name, index, _ in groups.offsets.fetch_all(group_id):
            if self._committed(groups, group_id, name, index) is not None:
                committed.setdefault(name, []).append(index)
        return committed.items()

    def _committed(self, groups: GroupShard, group_id: str, name: str, index: int) -> CommittedOffset | None:
        """Return None also for an offset of an earlier topic of the same name."""
        topic = self._catalogue.find(name)
        return groups.offsets.fetch(group_id, name, index, topic.id if topic is not None else ZERO_ID)


def _has_partition(topic: Topic | None, index: int) -> bool:
    return topic is not None and 0 <= index < topic.partition_count


def _fetch_error_response(request: OffsetFetchRequest, error: HeadraceError) -> OffsetFetchResponse:
    """Version 1 can report errors only per partition."""
    topics = [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(index, -1, -1, "", error.code) for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or ()
    ]
    return OffsetFetchResponse(topics=topics, error_code=error.code)
