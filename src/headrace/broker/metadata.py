"""Metadata, DescribeTopicPartitions and DescribeCluster: where things are.

One broker is the whole cluster here, so it leads every partition and coordinates every group. Answers for all topics
are large and asked for again and again: the topics' part is made once per version of the catalogue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.broker.catalogue import Catalogue, Topic
from headrace.broker.context import RequestContext
from headrace.broker.identity import BrokerIdentity
from headrace.model.errors import (
    HeadraceError,
    InvalidRequest,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.model.ids import ZERO_ID
from headrace.model.names import CONSUMER_OFFSETS, check_topic_name, is_internal
from headrace.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from headrace.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    NextCursor,
)
from headrace.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_PARTITIONS_PER_PAGE_MAX = 2000
_CONTROLLER_ENDPOINTS = 2


class Metadata:
    def __init__(
        self,
        catalogue: Catalogue,
        identity: BrokerIdentity,
        ensure_offsets_log: Callable[[], Awaitable[None]],
    ) -> None:
        self._catalogue = catalogue
        self._ensure_offsets_log = ensure_offsets_log
        self._identity = identity
        self._described: dict[str, MetadataResponseTopic] = {}
        self._described_version = -1

    async def handle(self, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        identity = self._identity
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(identity.node_id, identity.host, identity.port, identity.rack)],
            cluster_id=identity.cluster_id,
            controller_id=identity.node_id,
        )
        if request.topics is None or (context.version == 0 and not request.topics):
            response.topics = [self._describe(topic) for topic in self._catalogue]
            return response
        may_create = request.allow_auto_topic_creation and self._catalogue.config.auto_create_topics_enable
        for asked in request.topics:
            response.topics.append(await self._find(asked, may_create, context.version))
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
                response.next_cursor = NextCursor(topic_name=name, partition_index=first)
                break
            described = self._page(name, first, room)
            response.topics.append(described)
            room -= len(described.partitions)
            topic = self._catalogue.find(name)
            if topic is not None and first + len(described.partitions) < len(topic.partitions):
                response.next_cursor = NextCursor(topic_name=name, partition_index=first + len(described.partitions))
                break
        return response

    async def describe_cluster(
        self, request: DescribeClusterRequest, _context: RequestContext
    ) -> DescribeClusterResponse:
        identity = self._identity
        if request.endpoint_type == _CONTROLLER_ENDPOINTS:
            error = InvalidRequest("this cluster has no controllers apart from its brokers; ask for endpoint type 1")
            return DescribeClusterResponse(
                error_code=error.code, error_message=error.message, endpoint_type=request.endpoint_type
            )
        return DescribeClusterResponse(
            endpoint_type=request.endpoint_type,
            cluster_id=identity.cluster_id,
            controller_id=identity.node_id,
            brokers=[DescribeClusterBroker(identity.node_id, identity.host, identity.port, identity.rack)],
        )

    async def _find(self, asked: MetadataRequestTopic, may_create: bool, version: int) -> MetadataResponseTopic:
        """The topic asked for by id or by name, made if it is missing and that is allowed."""
        name, topic_id = asked.name, asked.topic_id
        try:
            if topic_id != ZERO_ID:
                found = self._catalogue.find_by_id(topic_id)
                if found is None:
                    raise UnknownTopicId(f"there is no topic with id {topic_id}")
                return self._describe(found)
            topic = self._catalogue.find(check_topic_name(name or ""))
            if topic is None:
                if not may_create:
                    raise UnknownTopicOrPartition(f"there is no topic {name}")
                topic = await self._create(name or "")
            return self._describe(topic)
        except HeadraceError as error:
            # Before version 12 an answer had to have a name.
            return MetadataResponseTopic(
                error_code=error.code, name=name if version >= 12 else name or "", topic_id=topic_id
            )

    async def _create(self, name: str) -> Topic:
        if name == CONSUMER_OFFSETS:
            await self._ensure_offsets_log()
            return self._catalogue.topic(name)
        if is_internal(name):
            raise UnknownTopicOrPartition(f"there is no topic {name}")
        try:
            return await self._catalogue.create(name, self._catalogue.config.num_partitions, {})
        except TopicAlreadyExists:
            return self._catalogue.topic(name)  # another client asked for it while we waited

    def _describe(self, topic: Topic) -> MetadataResponseTopic:
        if self._described_version != self._catalogue.version:
            self._described.clear()
            self._described_version = self._catalogue.version
        described = self._described.get(topic.name)
        if described is None:
            node = [self._identity.node_id]
            described = self._described[topic.name] = MetadataResponseTopic(
                name=topic.name,
                topic_id=topic.id,
                is_internal=topic.is_internal,
                partitions=[
                    MetadataResponsePartition(0, index, node[0], partition.leader_epoch, node, node)
                    for index, partition in enumerate(topic.partitions)
                ],
            )
        return described

    def _page(self, name: str, first: int, room: int) -> DescribeTopicPartitionsResponseTopic:
        topic = self._catalogue.find(name)
        if topic is None:
            return DescribeTopicPartitionsResponseTopic(error_code=UnknownTopicOrPartition.code, name=name)
        node = [self._identity.node_id]
        return DescribeTopicPartitionsResponseTopic(
            name=name,
            topic_id=topic.id,
            is_internal=topic.is_internal,
            partitions=[
                DescribeTopicPartitionsResponsePartition(
                    partition_index=partition.index,
                    leader_id=node[0],
                    leader_epoch=partition.leader_epoch,
                    replica_nodes=node,
                    isr_nodes=node,
                    eligible_leader_replicas=[],
                    last_known_elr=[],
                )
                for partition in topic.partitions[first : first + room]
            ],
        )
