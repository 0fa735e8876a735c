"""The cluster, as an administrator handles it: who holds what, moves of partitions, elections, and drains.

Every call is repeated while its error is retriable. What is asked for many partitions at once can be refused for some
of them: those calls return the refusals by partition instead of raising the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from headrace.client.admin.topic_admin import ResourceType
from headrace.client.cluster import Cluster
from headrace.client.connections.address import Address
from headrace.client.errors import error_of_code, only_result, raise_for_code
from headrace.client.metadata import TopicPartition
from headrace.model.errors import (
    EligibleLeadersNotAvailable,
    HeadraceError,
    PreferredLeaderNotAvailable,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from headrace.wire.messages.metadata import (
    Cursor,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsTopic,
)
from headrace.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DrainBrokerRequest,
    DrainBrokerResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)

THROTTLED_RATE = "follower.replication.throttled.rate"

_MIN_INSYNC = "min.insync.replicas"
_OF_ALL_BROKERS = ""
_SET, _DELETE = 0, 1
_PREFERRED, _UNCLEAN = 0, 1
_PARTITIONS_PER_REQUEST = 100  # a broker sees to one after the other, and all must be done within the request's time
_TOPICS_PER_REQUEST = 500
# An administrator who names what is not there, or asks for a leader that is not up, is not to wait for it.
_NOT_RETRIED = (UnknownTopicOrPartition, PreferredLeaderNotAvailable, EligibleLeadersNotAvailable)


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker that is up; one that is draining is to hold nothing, or about to go."""

    node_id: int
    address: Address
    rack: str | None
    is_draining: bool


@dataclass(frozen=True, slots=True)
class ClusterMembers:
    cluster_id: str
    controller_id: int
    brokers: Mapping[int, BrokerView]


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """Where a partition is: `in_sync` have all that is committed, `eligible` too, though they are behind. What is in
    `adding` and `removing` are the two ends of a move under way; `replicas` has both."""

    target: TopicPartition
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    eligible: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_offline(self) -> bool:
        return self.leader < 0

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def behind(self) -> tuple[int, ...]:
        """Replicas that ought to be in sync and are not; one that is being added is not expected to be."""
        return tuple(node for node in self.replicas if node not in self.in_sync and node not in self.adding)


PartitionErrors = Mapping[TopicPartition, HeadraceError]
ReplicaChange = tuple[tuple[int, ...], tuple[int, ...]]
"""The replicas that are being added, and those that are to go."""

_PartitionResult = tuple[TopicPartition, int, str | None]


class ClusterAdmin:
    """Administration of a cluster that the caller opened."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def members(self) -> ClusterMembers:
        async def call() -> ClusterMembers:
            answer: DescribeClusterResponse = await self._cluster.call(DescribeClusterRequest())
            raise_for_code(answer.error_code, answer.error_message)
            brokers = {
                result.broker_id: BrokerView(
                    result.broker_id, Address(result.host, result.port), result.rack, result.is_draining
                )
                for result in answer.brokers
            }
            return ClusterMembers(answer.cluster_id, answer.controller_id, dict(sorted(brokers.items())))

        return await self._cluster.call_with_retries(call)

    async def places(self, topics: Iterable[str] = ()) -> Sequence[PartitionReplicas]:
        """Every partition of these topics, or of all; raises UnknownTopicOrPartition."""
        moves = await self.moves()
        request = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsTopic(name=name) for name in sorted({*topics})]
        )
        found: list[PartitionReplicas] = []
        is_more = True
        while is_more:
            answer: DescribeTopicPartitionsResponse = await self._cluster.call_with_retries(
                partial(self._cluster.call, request)
            )
            for topic in answer.topics:
                found += _partition_replicas(topic, moves)
            is_more = answer.next_cursor is not None
            if answer.next_cursor is not None:
                request.cursor = Cursor(answer.next_cursor.topic_name, answer.next_cursor.partition_index)
        return sorted(found, key=lambda place: place.target)

    async def min_insync(self, topics: Iterable[str]) -> Mapping[str, int]:
        """How many replicas each topic wants in sync before it takes writes with acks=all."""
        wanted: dict[str, int] = {}

        async def call(names: Sequence[str]) -> None:
            resources = [
                DescribeConfigsResource(
                    resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=[_MIN_INSYNC]
                )
                for name in names
            ]
            answer: DescribeConfigsResponse = await self._cluster.call(DescribeConfigsRequest(resources=resources))
            for result in answer.results:
                if result.error_code in (UnknownTopicOrPartition.code, UnknownTopicId.code):
                    continue  # deleted meanwhile
                raise_for_code(result.error_code, result.error_message)
                wanted[result.resource_name] = int(only_result(result.configs).value or 1)

        for names in _chunks(sorted({*topics}), _TOPICS_PER_REQUEST):
            await self._cluster.call_with_retries(partial(call, names))
        return wanted

    async def moves(self) -> Mapping[TopicPartition, ReplicaChange]:
        """The partitions that are moving."""

        async def call() -> Mapping[TopicPartition, ReplicaChange]:
            request = ListPartitionReassignmentsRequest(topics=None, timeout_ms=self._timeout_ms)
            answer: ListPartitionReassignmentsResponse = await self._cluster.call(request)
            raise_for_code(answer.error_code, answer.error_message)
            return {
                TopicPartition(topic.name, result.partition_index): (
                    tuple(result.adding_replicas),
                    tuple(result.removing_replicas),
                )
                for topic in answer.topics
                for result in topic.partitions
            }

        return await self._cluster.call_with_retries(call)

    async def move(self, replicas: Mapping[TopicPartition, Sequence[int] | None]) -> PartitionErrors:
        """Begin to move partitions to these replicas; None ends a move that is under way, back to where it began."""

        async def call(targets: Sequence[TopicPartition]) -> Iterable[_PartitionResult]:
            topics: dict[str, list[ReassignablePartition]] = defaultdict(list)
            for target in targets:
                wanted = replicas[target]
                topics[target.topic].append(
                    ReassignablePartition(target.partition, None if wanted is None else list(wanted))
                )
            request = AlterPartitionReassignmentsRequest(
                timeout_ms=self._timeout_ms,
                topics=[ReassignableTopic(name, requested) for name, requested in topics.items()],
            )
            answer: AlterPartitionReassignmentsResponse = await self._cluster.call(request)
            raise_for_code(answer.error_code, answer.error_message)
            return [
                (TopicPartition(topic.name, result.partition_index), result.error_code, result.error_message)
                for topic in answer.responses
                for result in topic.partitions
            ]

        return await self._call_in_chunks(replicas, call)

    async def prefer(self, targets: Iterable[TopicPartition]) -> PartitionErrors:
        """Let the preferred replicas lead, which are the first of each."""
        return await self._elect(targets, _PREFERRED)

    async def elect_unclean(self, targets: Iterable[TopicPartition]) -> PartitionErrors:
        """Let a replica lead that may lack committed records, which are then lost."""
        return await self._elect(targets, _UNCLEAN)

    async def drain(self, node_id: int, *, is_drained: bool = True) -> None:
        """Let a broker hold nothing any more, or take part again."""

        async def call() -> None:
            request = DrainBrokerRequest(broker_id=node_id, is_drained=is_drained)
            answer: DrainBrokerResponse = await self._cluster.call(request)
            raise_for_code(answer.error_code, answer.error_message)

        await self._cluster.call_with_retries(call)

    async def throttle(self, bytes_per_second: int | None) -> None:
        """The most that each broker copies in a second to catch up; None for no bound."""
        operation, value = (_DELETE, None) if bytes_per_second is None else (_SET, str(bytes_per_second))
        change = IncrementalAlterableConfig(THROTTLED_RATE, operation, value)
        resource = IncrementalAlterConfigsResource(ResourceType.BROKER, _OF_ALL_BROKERS, [change])

        async def call() -> None:
            request = IncrementalAlterConfigsRequest(resources=[resource])
            answer: IncrementalAlterConfigsResponse = await self._cluster.call(request)
            for result in answer.responses:
                raise_for_code(result.error_code, result.error_message)

        await self._cluster.call_with_retries(call)

    async def sizes(self, node_id: int, targets: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The bytes that these partitions take on a broker's disk; those that it does not hold are left out."""
        topics = [DescribableLogDirTopic(name, indexes) for name, indexes in _by_topic(targets).items()]

        async def call() -> Mapping[TopicPartition, int]:
            answer: DescribeLogDirsResponse = await self._cluster.call(
                DescribeLogDirsRequest(topics=topics), node_id=node_id
            )
            raise_for_code(answer.error_code)
            return {
                TopicPartition(topic.name, result.partition_index): result.partition_size
                for folder in answer.results
                for topic in folder.topics
                for result in topic.partitions
            }

        return await self._cluster.call_with_retries(call)

    async def _elect(self, targets: Iterable[TopicPartition], election_type: int) -> PartitionErrors:
        async def call(targets: Sequence[TopicPartition]) -> Iterable[_PartitionResult]:
            topics = [ElectLeadersTopic(name, indexes) for name, indexes in _by_topic(targets).items()]
            request = ElectLeadersRequest(election_type, topics, timeout_ms=self._timeout_ms)
            answer: ElectLeadersResponse = await self._cluster.call(request)
            raise_for_code(answer.error_code)
            return [
                (TopicPartition(topic.topic, result.partition_id), result.error_code, result.error_message)
                for topic in answer.replica_election_results
                for result in topic.partition_result
            ]

        return await self._call_in_chunks(targets, call)

    async def _call_in_chunks(
        self,
        targets: Iterable[TopicPartition],
        call: Callable[[Sequence[TopicPartition]], Awaitable[Iterable[_PartitionResult]]],
    ) -> PartitionErrors:
        """Ask for a share of them at a time; those that may succeed later are asked for again."""
        refused: dict[TopicPartition, HeadraceError] = {}

        async def attempt(share: set[TopicPartition]) -> None:
            again: HeadraceError | None = None
            for target, code, message in await call(sorted(share)):
                error = error_of_code(code, message) if code else None
                if error is not None and error.retriable and not isinstance(error, _NOT_RETRIED):
                    again = error
                    continue
                share.discard(target)
                if error is not None:
                    refused[target] = error
            if again is not None:
                raise again

        for share in _chunks(sorted({*targets}), _PARTITIONS_PER_REQUEST):
            await self._cluster.call_with_retries(partial(attempt, {*share}))
        return refused

    @property
    def _timeout_ms(self) -> int:
        return int(self._cluster.settings.request_timeout_seconds * 1000)


def _partition_replicas(topic: Any, moves: Mapping[TopicPartition, ReplicaChange]) -> Iterator[PartitionReplicas]:
    if topic.error_code == UnknownTopicOrPartition.code:
        raise UnknownTopicOrPartition(f"there is no topic {topic.name!r}")
    raise_for_code(topic.error_code)
    for result in topic.partitions:
        target = TopicPartition(topic.name, result.partition_index)
        adding, removing = moves.get(target, ((), ()))
        yield PartitionReplicas(
            target=target,
            leader=result.leader_id,
            leader_epoch=result.leader_epoch,
            replicas=tuple(result.replica_nodes),
            in_sync=tuple(result.isr_nodes),
            eligible=tuple(result.eligible_leader_replicas or ()),
            adding=adding,
            removing=removing,
        )


def _by_topic(targets: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in targets:
        topics[topic].append(partition)
    return topics


def _chunks(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while chunk := [*islice(rest, size)]:
        yield chunk
