"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords. The topics of a request are independent."""

from __future__ import annotations

import asyncio
from collections import Counter

from headrace.broker.catalogue import Catalogue
from headrace.broker.context import RequestContext
from headrace.broker.topic import Topic
from headrace.model.errors import (
    HeadraceError,
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
from headrace.model.topic_configs import describe_topic
from headrace.model.topic_record import TopicRecord
from headrace.runtime.clock import Clock
from headrace.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from headrace.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from headrace.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_USE_DEFAULT = -1
_HIGH_WATERMARK = -1
_LOOK_SECONDS = 0.05


class TopicAdmin:
    def __init__(self, catalogue: Catalogue, clock: Clock) -> None:
        self._catalogue = catalogue
        self._clock = clock

    async def create_topics(self, request: CreateTopicsRequest, _context: RequestContext) -> CreateTopicsResponse:
        times_named = Counter(topic.name for topic in request.topics)
        response = CreateTopicsResponse()
        for asked in {topic.name: topic for topic in request.topics}.values():
            try:
                if times_named[asked.name] > 1:
                    raise InvalidRequest("Duplicate topic name.")
                topic = await self._create(asked, dry_run=request.validate_only)
                response.topics.append(self._created(topic))
            except HeadraceError as error:
                response.topics.append(
                    CreatableTopicResult(
                        name=asked.name, error_code=error.code, error_message=error.message, configs=[]
                    )
                )
        return response

    async def delete_topics(self, request: DeleteTopicsRequest, _context: RequestContext) -> DeleteTopicsResponse:
        asked = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
        response = DeleteTopicsResponse()
        times_named = Counter((one.name, one.topic_id) for one in asked)
        deleted: list[TopicRecord] = []  # by this request, including dead-letter topics of deleted topics
        for one in {(one.name, one.topic_id): one for one in asked}.values():
            result = DeletableTopicResult(name=one.name, topic_id=one.topic_id)
            try:
                if times_named[one.name, one.topic_id] > 1:
                    raise InvalidRequest("Duplicate topic name or id.")
                if any(one.name == record.name or one.topic_id == record.id for record in deleted):
                    response.responses.append(result)
                    continue
                topic = self._find(one)
                result.name, result.topic_id = topic.name, topic.id
                if not self._catalogue.config.delete_topic_enable:
                    raise TopicDeletionDisabled
                if topic.is_internal:
                    raise InvalidTopic(f"{topic.name} is internal and cannot be deleted")
                deleted += await self._catalogue.delete(topic.name)
            except HeadraceError as error:
                result.error_code, result.error_message = error.code, error.message
            response.responses.append(result)
        return response

    async def create_partitions(
        self, request: CreatePartitionsRequest, _context: RequestContext
    ) -> CreatePartitionsResponse:
        times_named = Counter(topic.name for topic in request.topics)
        response = CreatePartitionsResponse()
        for asked in {topic.name: topic for topic in request.topics}.values():
            result = CreatePartitionsTopicResult(name=asked.name)
            try:
                if times_named[asked.name] > 1:
                    raise InvalidRequest("Duplicate topic name.")
                self._check_new_partitions(asked)
                assigned = [tuple(one.broker_ids) for one in asked.assignments or ()]
                await self._catalogue.add_partitions(
                    asked.name, asked.count, assignment=assigned, dry_run=request.validate_only
                )
            except HeadraceError as error:
                result.error_code, result.error_message = error.code, error.message
            response.results.append(result)
        return response

    async def delete_records(self, request: DeleteRecordsRequest, _context: RequestContext) -> DeleteRecordsResponse:
        response = DeleteRecordsResponse()
        for topic in request.topics:
            results = DeleteRecordsTopicResult(name=topic.name)
            for asked in topic.partitions:
                result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
                try:
                    deadline = self._clock.monotonic() + request.timeout_ms / 1000
                    result.low_watermark = await self._delete_records(
                        topic.name, asked.partition_index, asked.offset, deadline
                    )
                except HeadraceError as error:
                    result.error_code = error.code
                results.partitions.append(result)
            response.topics.append(results)
        return response

    async def _create(self, asked: CreatableTopic, *, dry_run: bool) -> Topic:
        if is_internal(asked.name) and self._catalogue.find(asked.name) is None:
            raise InvalidTopic(f"{asked.name} is internal and cannot be created")
        if asked.assignments and (asked.num_partitions != _USE_DEFAULT or asked.replication_factor != _USE_DEFAULT):
            raise InvalidRequest("A manual partition assignment and a number of partitions exclude each other.")
        partitions = asked.num_partitions
        assigned = _assigned(asked)
        if assigned:
            partitions = self._check_assignments(assigned)
        elif partitions == _USE_DEFAULT:  # in all versions, as in Kafka: kafkajs uses it in version 3
            partitions = self._catalogue.config.num_partitions
        return await self._catalogue.create(
            asked.name,
            partitions,
            _configs(asked),
            replication=None if asked.replication_factor == _USE_DEFAULT else asked.replication_factor,
            assignment=[tuple(assigned[index]) for index in sorted(assigned)],
            dry_run=dry_run,
        )

    def _check_assignments(self, assigned: dict[int, list[int]]) -> int:
        if sorted(assigned) != list(range(len(assigned))):
            raise InvalidReplicaAssignment("partitions should be a consecutive 0-based integer sequence")
        self._check_brokers(list(assigned.values()))
        return len(assigned)

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

    def _check_new_partitions(self, asked: CreatePartitionsTopic) -> None:
        topic = self._catalogue.topic(asked.name)
        if topic.is_internal:
            raise InvalidTopic(f"{asked.name} is internal and cannot be changed")
        if asked.count <= topic.partition_count:
            raise InvalidPartitions(
                f"The topic {asked.name} currently has {topic.partition_count} partition(s); "
                f"{asked.count} would not be an increase."
            )
        if asked.assignments is not None:
            if len(asked.assignments) != asked.count - topic.partition_count:
                raise InvalidReplicaAssignment("there must be one assignment for each new partition")
            self._check_brokers([assignment.broker_ids for assignment in asked.assignments])

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

    def _find(self, asked: DeleteTopicState) -> Topic:
        if asked.topic_id != ZERO_ID:
            if asked.name is not None:
                raise InvalidRequest("You may not specify both topic name and topic id.")
            topic = self._catalogue.find_by_id(asked.topic_id)
            if topic is None:
                raise UnknownTopicId(f"topic id {asked.topic_id} does not exist")
            return topic
        if asked.name is None:
            raise InvalidRequest("Neither topic name nor id was specified.")
        return self._catalogue.topic(asked.name)

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
        partition.tell_copiers()
        while True:
            partition.ensure_led()
            assert partition.in_sync is not None
            low_watermark = partition.in_sync.low_watermark(partition.log.start_offset, self._catalogue.nodes)
            if low_watermark >= offset:
                return low_watermark
            if self._clock.monotonic() >= deadline:
                raise RequestTimedOut("not all replicas have deleted the records yet")
            await asyncio.sleep(_LOOK_SECONDS)


def _configs(asked: CreatableTopic) -> dict[str, str]:
    configs: dict[str, str] = {}
    for config in asked.configs:
        if config.value is None:
            raise InvalidConfig(f"Null value not supported for topic configs: {config.name}")
        configs[config.name] = config.value
    return configs


def _assigned(asked: CreatableTopic) -> dict[int, list[int]]:
    return {assignment.partition_index: assignment.broker_ids for assignment in asked.assignments}
