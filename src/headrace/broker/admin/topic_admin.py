"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords. The topics of a request are independent."""

from __future__ import annotations

import asyncio
from collections import Counter

from headrace.broker.handlers import ReportErrors, RequestContext
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    InvalidTopic,
    OffsetOutOfRange,
    PolicyViolation,
    RequestTimedOut,
    TopicDeletionDisabled,
    UnknownTopicId,
)
from headrace.model.ids import ZERO_ID
from headrace.model.names import is_internal
from headrace.model.registry_records import TopicRecord
from headrace.model.topic_configs import describe_topic
from headrace.runtime.clock import Clock
from headrace.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_USE_DEFAULT = -1
_HIGH_WATERMARK = -1
_POLL_SECONDS = 0.05


class TopicAdminRequests:
    def __init__(self, catalogue: Catalogue, clock: Clock) -> None:
        self._catalogue = catalogue
        self._clock = clock

    async def create_topics(self, request: CreateTopicsRequest, _context: RequestContext) -> CreateTopicsResponse:
        times_named = Counter(topic.name for topic in request.topics)
        response = CreateTopicsResponse()
        for requested in {topic.name: topic for topic in request.topics}.values():
            result = CreatableTopicResult(name=requested.name, configs=[])
            with ReportErrors(result):
                if times_named[requested.name] > 1:
                    raise InvalidRequest("Duplicate topic name.")
                result = self._created(await self._create(requested, dry_run=request.validate_only))
            response.topics.append(result)
        return response

    async def delete_topics(self, request: DeleteTopicsRequest, _context: RequestContext) -> DeleteTopicsResponse:
        requested = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
        response = DeleteTopicsResponse()
        times_named = Counter((one.name, one.topic_id) for one in requested)
        deleted: list[TopicRecord] = []  # by this request, including dead-letter topics of deleted topics
        for one in {(one.name, one.topic_id): one for one in requested}.values():
            result = DeletableTopicResult(name=one.name, topic_id=one.topic_id)
            with ReportErrors(result):
                if times_named[one.name, one.topic_id] > 1:
                    raise InvalidRequest("Duplicate topic name or id.")
                if not any(one.name == record.name or one.topic_id == record.id for record in deleted):
                    topic = self._find(one)
                    result.name, result.topic_id = topic.name, topic.id
                    deleted += await self._delete(topic)
            response.responses.append(result)
        return response

    async def create_partitions(
        self, request: CreatePartitionsRequest, _context: RequestContext
    ) -> CreatePartitionsResponse:
        times_named = Counter(topic.name for topic in request.topics)
        response = CreatePartitionsResponse()
        for requested in {topic.name: topic for topic in request.topics}.values():
            result = CreatePartitionsTopicResult(name=requested.name)
            with ReportErrors(result):
                if times_named[requested.name] > 1:
                    raise InvalidRequest("Duplicate topic name.")
                self._check_new_partitions(requested)
                assigned = [tuple(one.broker_ids) for one in requested.assignments or ()]
                await self._catalogue.add_partitions(
                    requested.name, requested.count, assignment=assigned, dry_run=request.validate_only
                )
            response.results.append(result)
        return response

    async def delete_records(self, request: DeleteRecordsRequest, _context: RequestContext) -> DeleteRecordsResponse:
        response = DeleteRecordsResponse()
        for topic in request.topics:
            results = DeleteRecordsTopicResult(name=topic.name)
            for requested in topic.partitions:
                result = DeleteRecordsPartitionResult(partition_index=requested.partition_index, low_watermark=-1)
                with ReportErrors(result):
                    deadline = self._clock.monotonic() + request.timeout_ms / 1000
                    result.low_watermark = await self._delete_records(
                        topic.name, requested.partition_index, requested.offset, deadline
                    )
                results.partitions.append(result)
            response.topics.append(results)
        return response

    async def _create(self, requested: CreatableTopic, *, dry_run: bool) -> Topic:
        if is_internal(requested.name) and self._catalogue.find(requested.name) is None:
            raise InvalidTopic(f"{requested.name} is internal and cannot be created")
        if requested.assignments and (
            requested.num_partitions != _USE_DEFAULT or requested.replication_factor != _USE_DEFAULT
        ):
            raise InvalidRequest("A manual partition assignment and a number of partitions exclude each other.")
        partitions = requested.num_partitions
        assigned = {assignment.partition_index: assignment.broker_ids for assignment in requested.assignments}
        if assigned:
            partitions = len(assigned)
            if sorted(assigned) != list(range(partitions)):
                raise InvalidReplicaAssignment("partitions should be a consecutive 0-based integer sequence")
            self._check_brokers(list(assigned.values()))
        elif partitions == _USE_DEFAULT:  # in all versions, as in Kafka: kafkajs uses it in version 3
            partitions = self._catalogue.config.num_partitions
        return await self._catalogue.create(
            requested.name,
            partitions,
            _requested_configs(requested),
            replication=None if requested.replication_factor == _USE_DEFAULT else requested.replication_factor,
            assignment=[tuple(assigned[index]) for index in sorted(assigned)],
            dry_run=dry_run,
        )

    async def _delete(self, topic: Topic) -> list[TopicRecord]:
        if not self._catalogue.config.delete_topic_enable:
            raise TopicDeletionDisabled
        if topic.is_internal:
            raise InvalidTopic(f"{topic.name} is internal and cannot be deleted")
        return await self._catalogue.delete(topic.name)

    def _check_brokers(self, replicas: list[list[int]]) -> None:
        for brokers in replicas:
            if not brokers or len(set(brokers)) < len(brokers):
                raise InvalidReplicaAssignment(
                    f"the replicas of a partition must be on distinct brokers, not on {brokers}"
                )
            if len(brokers) != len(replicas[0]):
                raise InvalidReplicaAssignment("all partitions must have the same number of replicas")
            unknown = [node_id for node_id in brokers if node_id not in self._catalogue.nodes]
            if unknown:
                raise InvalidReplicaAssignment(f"broker {unknown[0]} is not up, so it cannot get a replica")

    def _check_new_partitions(self, requested: CreatePartitionsTopic) -> None:
        topic = self._catalogue.topic(requested.name)
        if topic.is_internal:
            raise InvalidTopic(f"{requested.name} is internal and cannot be changed")
        if requested.count <= topic.partition_count:
            raise InvalidPartitions(
                f"The topic {requested.name} currently has {topic.partition_count} partition(s); "
                f"{requested.count} would not be an increase."
            )
        if requested.assignments is not None:
            if len(requested.assignments) != requested.count - topic.partition_count:
                raise InvalidReplicaAssignment("there must be one assignment for each new partition")
            self._check_brokers([assignment.broker_ids for assignment in requested.assignments])

    def _created(self, topic: Topic) -> CreatableTopicResult:
        entries = describe_topic(topic.record.configs, self._catalogue.config.layers)
        return CreatableTopicResult(
            name=topic.name,
            topic_id=topic.id,
            num_partitions=topic.record.partitions,
            replication_factor=topic.replication,
            configs=[
                CreatableTopicConfigs(
                    name=entry.name, value=entry.value, read_only=entry.read_only, config_source=entry.source
                )
                for entry in entries
            ],
        )

    def _find(self, requested: DeleteTopicState) -> Topic:
        if requested.topic_id != ZERO_ID:
            if requested.name is not None:
                raise InvalidRequest("You may not specify both topic name and topic id.")
            topic = self._catalogue.find_by_id(requested.topic_id)
            if topic is None:
                raise UnknownTopicId(f"topic id {requested.topic_id} does not exist")
            return topic
        if requested.name is None:
            raise InvalidRequest("Neither topic name nor id was specified.")
        return self._catalogue.topic(requested.name)

    async def _delete_records(self, topic: str, index: int, offset: int, deadline: float) -> int:
        """Delete records, and wait until no eligible replica has any below the offset, so that they cannot reappear."""
        partition = self._catalogue.partition(topic, index)
        if is_internal(topic):
            raise PolicyViolation(f"records of the internal topic {topic} cannot be deleted")
        if not self._catalogue.topic(topic).config.deletes:
            raise PolicyViolation("records can only be deleted from topics whose cleanup.policy includes delete")
        if offset == _HIGH_WATERMARK:
            offset = partition.high_watermark
        if not 0 <= offset <= partition.high_watermark:
            raise OffsetOutOfRange(f"offset {offset} is not in the log, which ends at {partition.high_watermark}")
        await partition.log.advance_start(offset)
        partition.notify_followers()
        while True:
            partition.ensure_leader()
            assert partition.in_sync is not None
            low_watermark = partition.in_sync.low_watermark(partition.log.start_offset, self._catalogue.nodes)
            if low_watermark >= offset:
                return low_watermark
            if self._clock.monotonic() >= deadline:
                raise RequestTimedOut("not all replicas have deleted the records yet")
            await asyncio.sleep(_POLL_SECONDS)


def _requested_configs(requested: CreatableTopic) -> dict[str, str]:
    configs: dict[str, str] = {}
    for config in requested.configs:
        if config.value is None:
            raise InvalidConfig(f"Null value not supported for topic configs: {config.name}")
        configs[config.name] = config.value
    return configs
