"""Metadata, DescribeTopicPartitions, DescribeCluster and DescribeQuorum.

Responses contain what this broker's mirror of the registry shows. Responses for all topics are large and requested
often, so the part of a topic is built once per change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import copy

from headrace.broker.cluster.membership import BrokerIdentity
from headrace.broker.handlers import ReportErrors, RequestContext, report_error
from headrace.broker.partition import Partition
from headrace.broker.security.security_requests import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import (
    HeadraceError,
    InvalidRequest,
    InvalidTopic,
    LeaderNotAvailable,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.model.ids import ZERO_ID
from headrace.model.names import CONSUMER_OFFSETS, DELAYED_PREFIX, check_topic_name, is_internal, owner_of
from headrace.model.registry_records import NO_LEADER, BrokerRecord, PartitionRecord
from headrace.wire.messages.metadata import (
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeQuorumRequest,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    QuorumListener,
    QuorumNode,
    QuorumReplica,
)

_PARTITIONS_PER_PAGE_MAX = 2000
_CONTROLLER_ENDPOINT_TYPE = 2
_CLUSTER_METADATA = "__cluster_metadata"  # Kafka's metadata log, instead of which Headrace has the registry


class MetadataRequests:
    def __init__(
        self,
        catalogue: Catalogue,
        identity: BrokerIdentity,
        ensure_offsets_log: Callable[[], Awaitable[None]],
        session_valid: Callable[[], bool],
    ) -> None:
        self._catalogue = catalogue
        self._session_valid = session_valid
        self._ensure_offsets_log = ensure_offsets_log
        self._identity = identity

    async def handle(self, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(node.node_id, node.host, node.port, node.rack) for node in self._nodes()],
            cluster_id=self._identity.cluster_id,
            controller_id=self._controller_id(),
        )
        if request.topics is None or (context.version == 0 and not request.topics):
            response.topics = [self._describe(topic) for topic in self._catalogue]
        else:
            for requested in request.topics:
                may_create = request.allow_auto_topic_creation and self._makes(requested.name or "")
                response.topics.append(await self._find(requested, may_create, context.version))
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        if request.include_topic_authorized_operations:
            response.topics = [_with_authorized_operations(topic) for topic in response.topics]
        return response

    async def describe_topic_partitions(
        self, request: DescribeTopicPartitionsRequest, _context: RequestContext
    ) -> DescribeTopicPartitionsResponse:
        names = sorted({topic.name for topic in request.topics} or {topic.name for topic in self._catalogue})
        if request.cursor is not None and request.cursor.partition_index < 0:
            return DescribeTopicPartitionsResponse(
                topics=[
                    DescribeTopicPartitionsResponseTopic(error_code=InvalidRequest.code, name=name) for name in names
                ]
            )
        cursor = request.cursor or Cursor(topic_name="", partition_index=0)
        room = min(max(request.response_partition_limit, 1), _PARTITIONS_PER_PAGE_MAX)
        response = DescribeTopicPartitionsResponse()
        for name in names:
            if name < cursor.topic_name:
                continue
            first = cursor.partition_index if name == cursor.topic_name else 0
            if room == 0:
                response.next_cursor = Cursor(topic_name=name, partition_index=first)
                break
            described = self._page(name, first, room)
            response.topics.append(described)
            room -= len(described.partitions)
            topic = self._catalogue.find(name)
            if topic is not None and first + len(described.partitions) < topic.partition_count:
                response.next_cursor = Cursor(topic_name=name, partition_index=first + len(described.partitions))
                break
        return response

    async def describe_cluster(
        self, request: DescribeClusterRequest, _context: RequestContext
    ) -> DescribeClusterResponse:
        if request.endpoint_type == _CONTROLLER_ENDPOINT_TYPE:
            response = DescribeClusterResponse(endpoint_type=request.endpoint_type)
            error = InvalidRequest("this cluster has no dedicated controllers; use endpoint type 1 (brokers)")
            report_error(response, error)
            return response
        response = DescribeClusterResponse(
            endpoint_type=request.endpoint_type,
            cluster_id=self._identity.cluster_id,
            controller_id=self._controller_id(),
            brokers=[
                DescribeClusterBroker(
                    broker_id=node.node_id,
                    host=node.host,
                    port=node.port,
                    rack=node.rack,
                    is_draining=node.is_draining or node.node_id in self._catalogue.drained,
                )
                for node in self._nodes()
            ],
            session_invalid=not self._session_valid(),
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response

    async def describe_quorum(self, request: DescribeQuorumRequest, _context: RequestContext) -> DescribeQuorumResponse:
        """The brokers in the roles of Kafka's quorum: the controller leads, every broker may become the controller.

        The registry has no log whose offsets could be compared. The number shown is how many changes of topics and
        configs this broker has applied since it started; brokers do not tell each other, so all are shown at the same.
        """
        nodes = [
            QuorumNode(node.node_id, [QuorumListener(name="PLAINTEXT", host=node.host, port=node.port)])
            for node in self._nodes()
        ]
        return DescribeQuorumResponse(topics=[self._quorum(topic) for topic in request.topics], nodes=nodes)

    def _quorum(self, requested: DescribeQuorumRequestTopic) -> DescribeQuorumResponseTopic:
        described = DescribeQuorumResponseTopic(topic_name=requested.topic_name)
        for index in (partition.partition_index for partition in requested.partitions):
            if (requested.topic_name, index) != (_CLUSTER_METADATA, 0):
                described.partitions.append(
                    DescribeQuorumResponsePartition(partition_index=index, error_code=UnknownTopicOrPartition.code)
                )
                continue
            controller, version = self._catalogue.controller, self._catalogue.version
            described.partitions.append(
                DescribeQuorumResponsePartition(
                    partition_index=index,
                    leader_id=self._controller_id(),
                    leader_epoch=0 if controller is None else controller.epoch,
                    high_watermark=version,
                    current_voters=[QuorumReplica(node.node_id, log_end_offset=version) for node in self._nodes()],
                )
            )
        return described

    async def _find(self, requested: MetadataRequestTopic, may_create: bool, version: int) -> MetadataResponseTopic:
        """Find a topic by id or name; create it if it is missing and auto-creation is allowed."""
        name, topic_id = requested.name, requested.topic_id
        # Before version 12 the name in the response was not nullable.
        error_response = MetadataResponseTopic(name=name if version >= 12 else name or "", topic_id=topic_id)
        with ReportErrors(error_response):
            if topic_id != ZERO_ID:
                found = self._catalogue.find_by_id(topic_id)
                if found is None:
                    raise UnknownTopicId(f"topic id {topic_id} does not exist")
                return self._describe(found)
            topic = self._catalogue.find(name or "")
            if topic is None:
                missing = self._missing(name or "")
                if not may_create or isinstance(missing, InvalidTopic):
                    raise missing
                topic = await self._create(name or "")
            return self._describe(topic)
        return error_response

    def _missing(self, name: str) -> HeadraceError:
        """Return the error for a missing topic: it does not exist, or its name is invalid."""
        try:
            check_topic_name(owner_of(name) or name)  # a co-located topic's name is longer by its prefix
        except InvalidTopic as error:
            return error
        return UnknownTopicOrPartition(f"topic {name} does not exist")

    def _makes(self, name: str) -> bool:
        """Whether a missing topic is created automatically. A topic of delayed messages is created on first use even if
        auto-creation is disabled; its owner must then exist."""
        return self._catalogue.config.auto_create_topics_enable or name.startswith(DELAYED_PREFIX)

    async def _create(self, name: str) -> Topic:
        if name == CONSUMER_OFFSETS:
            await self._ensure_offsets_log()
            return self._catalogue.topic(name)
        if name.startswith(DELAYED_PREFIX):
            return await self._catalogue.ensure_colocated_topic(name.removeprefix(DELAYED_PREFIX), DELAYED_PREFIX)
        if is_internal(name):
            raise UnknownTopicOrPartition(f"topic {name} does not exist")
        try:
            return await self._catalogue.create(name, self._catalogue.config.num_partitions, {})
        except TopicAlreadyExists:
            return self._catalogue.topic(name)  # created by a concurrent request

    def _nodes(self) -> list[BrokerRecord]:
        return sorted(self._catalogue.nodes.values(), key=lambda node: node.node_id)

    def _controller_id(self) -> int:
        """Return the controller, or any broker: every broker handles admin requests, but clients require a
        controller."""
        controller = self._catalogue.controller
        return self._identity.node_id if controller is None else controller.node_id

    def _describe(self, topic: Topic) -> MetadataResponseTopic:
        if topic.cached_metadata is None:
            topic.cached_metadata = MetadataResponseTopic(
                name=topic.name,
                topic_id=topic.id,
                is_internal=topic.is_internal,
                partitions=[self._partition(topic, index) for index in range(topic.partition_count)],
            )
        return topic.cached_metadata

    def _partition(self, topic: Topic, index: int) -> MetadataResponsePartition:
        record = topic.partition_records.get(index)
        if record is None:
            return MetadataResponsePartition(LeaderNotAvailable.code, index, NO_LEADER, -1, [], [], [])
        leader = self._leader(record, topic.led.get(index))
        return MetadataResponsePartition(
            0 if leader != NO_LEADER else LeaderNotAvailable.code,
            index,
            leader,
            record.leader_epoch,
            list(record.replicas),
            list(record.isr),
            self._offline(record),
        )

    def _leader(self, record: PartitionRecord, here: Partition | None) -> int:
        """Return the leader if it is alive. This broker is not returned as the leader if it may have been replaced."""
        if here is not None and here.writes_suspended:
            return NO_LEADER
        return record.leader if record.leader in self._catalogue.nodes else NO_LEADER

    def _offline(self, record: PartitionRecord) -> list[int]:
        return [node_id for node_id in record.replicas if node_id not in self._catalogue.nodes]

    def _page(self, name: str, first: int, room: int) -> DescribeTopicPartitionsResponseTopic:
        topic = self._catalogue.find(name)
        if topic is None:
            return DescribeTopicPartitionsResponseTopic(error_code=self._missing(name).code, name=name)
        indexes = range(first, min(first + room, topic.partition_count))
        return DescribeTopicPartitionsResponseTopic(
            name=name,
            topic_id=topic.id,
            is_internal=topic.is_internal,
            partitions=[
                self._described(index, record, topic.led.get(index))
                for index in indexes
                if (record := topic.partition_records.get(index)) is not None
            ],
            topic_authorized_operations=TOPIC_OPERATIONS,
        )

    def _described(
        self, index: int, record: PartitionRecord, here: Partition | None
    ) -> DescribeTopicPartitionsResponsePartition:
        leader = self._leader(record, here)
        return DescribeTopicPartitionsResponsePartition(
            error_code=0 if leader != NO_LEADER else LeaderNotAvailable.code,
            partition_index=index,
            leader_id=leader,
            leader_epoch=record.leader_epoch,
            replica_nodes=list(record.replicas),
            isr_nodes=list(record.isr),
            eligible_leader_replicas=list(record.elr),
            last_known_elr=[],
            offline_replicas=self._offline(record),
        )


def _with_authorized_operations(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    """Return a copy with authorized operations, since the cached description is shared by all responses."""
    if topic.error_code:
        return topic
    topic = copy(topic)
    topic.topic_authorized_operations = TOPIC_OPERATIONS
    return topic
