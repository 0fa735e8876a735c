"""OffsetCommit, OffsetFetch and OffsetDelete: the committed offsets of groups."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.broker.groups.group_shard import GroupShard
from headrace.broker.handlers import ReportErrors, RequestContext
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.groups.group_offsets import OffsetCommitted, OffsetForgotten
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
        response = OffsetCommitResponse()
        results: list[OffsetCommitResponsePartition] = []
        for topic in request.topics:
            of_topic = [OffsetCommitResponsePartition(partition_index=one.partition_index) for one in topic.partitions]
            response.topics.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, of_topic))
            results += of_topic
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
                event = groups.offsets.commit(
                    request.group_id,
                    known.name,
                    requested.partition_index,
                    requested.committed_offset,
                    now_ms=self._clock.now_ms(),
                    leader_epoch=requested.committed_leader_epoch,
                    metadata=requested.committed_metadata,
                    topic_id=known.id,
                    retention_ms=request.retention_time_ms,
                )
                events.append(event)
        return events

    async def fetch(self, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
        if context.version >= _GROUPS_SINCE:
            return OffsetFetchResponse(
                groups=[
                    await self._fetch_group(group, context.version, must_be_stable=request.require_stable)
                    for group in request.groups
                ]
            )
        try:
            groups = self._coordinator.of(request.group_id)
            reader = _OffsetReader(self._catalogue, groups, request.group_id, must_be_stable=request.require_stable)
            response = OffsetFetchResponse(topics=reader.read(request.topics, context.version))
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

    async def _fetch_group(
        self, requested: OffsetFetchRequestGroup, version: int, *, must_be_stable: bool
    ) -> OffsetFetchResponseGroup:
        """Return the response for one group when its content is durable."""
        response = OffsetFetchResponseGroup(group_id=requested.group_id)
        with ReportErrors(response):
            groups = self._coordinator.of(requested.group_id)
            groups.check_fetch(requested.group_id, requested.member_id, requested.member_epoch)
            reader = _OffsetReader(self._catalogue, groups, requested.group_id, must_be_stable=must_be_stable)
            topics = reader.read(requested.topics, version)
            await groups.settle()
            self._ensure_session_valid()
            response.topics = topics
        return response


class _OffsetReader:
    """Reads the committed offsets of one group."""

    def __init__(self, catalogue: Catalogue, groups: GroupShard, group_id: str, *, must_be_stable: bool) -> None:
        self._catalogue = catalogue
        self._offsets = groups.offsets
        self._group_id = group_id
        self._must_be_stable = must_be_stable

    def read(self, requested: list[OffsetFetchRequestTopic] | None, version: int) -> list[OffsetFetchResponseTopic]:
        """Return the requested offsets, or all that are committed if the request lists no topics."""
        if requested is None:
            wanted = self._committed_partitions()
        elif version >= _TOPIC_IDS_SINCE:
            return [self._read_by_id(topic) for topic in requested]
        else:
            wanted = [(topic.name, topic.partition_indexes) for topic in requested]
        results = []
        for name, indexes in wanted:
            topic_id = self._topic_id(name)
            if version < _TOPIC_IDS_SINCE or topic_id != ZERO_ID:
                found = [self._find(name, index) for index in indexes]
                results.append(OffsetFetchResponseTopic(name=name, topic_id=topic_id, partitions=found))
        return results

    def _read_by_id(self, requested: OffsetFetchRequestTopic) -> OffsetFetchResponseTopic:
        topic, indexes = self._catalogue.find_by_id(requested.topic_id), requested.partition_indexes
        if topic is None:
            found = [_without_offset(index, UnknownTopicId.code) for index in indexes]
        else:
            found = [self._find(topic.name, index) for index in indexes]
        return OffsetFetchResponseTopic(topic_id=requested.topic_id, partitions=found)

    def _committed_partitions(self) -> list[tuple[str, list[int]]]:
        committed: dict[str, list[int]] = {}
        for name, index, _ in self._offsets.fetch_all(self._group_id):
            if self._offsets.fetch(self._group_id, name, index, self._topic_id(name)) is not None:
                committed.setdefault(name, []).append(index)
        return list(committed.items())

    def _find(self, name: str, index: int) -> OffsetFetchResponsePartition:
        """An offset that a transaction may change is unstable. One of an earlier topic of the same name is ignored."""
        if self._must_be_stable and self._offsets.is_pending(self._group_id, name, index):
            return _without_offset(index, UnstableOffsetCommit.code)
        found = self._offsets.fetch(self._group_id, name, index, self._topic_id(name))
        if found is None:
            return _without_offset(index, 0)
        return OffsetFetchResponsePartition(index, found.offset, found.leader_epoch, found.metadata)

    def _topic_id(self, name: str) -> UUID:
        topic = self._catalogue.find(name)
        return ZERO_ID if topic is None else topic.id


def _has_partition(topic: Topic | None, index: int) -> bool:
    return topic is not None and 0 <= index < topic.partition_count


def _without_offset(index: int, error_code: int) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(index, -1, -1, "", error_code)


def _fetch_error_response(request: OffsetFetchRequest, error: HeadraceError) -> OffsetFetchResponse:
    """Version 1 can report errors only per partition."""
    topics = [
        OffsetFetchResponseTopic(
            name=topic.name, partitions=[_without_offset(index, error.code) for index in topic.partition_indexes]
        )
        for topic in request.topics or ()
    ]
    return OffsetFetchResponse(topics=topics, error_code=error.code)
