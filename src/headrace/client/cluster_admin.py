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

from headrace.client.address import Address
from headrace.client.admin import ResourceType
from headrace.client.cluster import Cluster
from headrace.client.errors import only, raise_for, refusal
from headrace.client.metadata import TopicPartition
from headrace.model.errors import (
    EligibleLeadersNotAvailable,
    HeadraceError,
    PreferredLeaderNotAvailable,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from headrace.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from headrace.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from headrace.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from headrace.wire.messages.drain_broker import DrainBrokerRequest, DrainBrokerResponse
from headrace.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

THROTTLE = "follower.replication.throttled.rate"

_MIN_INSYNC = "min.insync.replicas"
_OF_ALL_BROKERS = ""
_SET, _DELETE = 0, 1
_PREFERRED, _UNCLEAN = 0, 1
_PARTITIONS_PER_REQUEST = 100  # a broker sees to one after the other, and all must be done within the request's time
_TOPICS_PER_REQUEST = 500
# An administrator who names what is not there, or asks for a leader that is not up, is not to wait for it.
_TOLD_AT_ONCE = (UnknownTopicOrPartition, PreferredLeaderNotAvailable, EligibleLeadersNotAvailable)


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
class PartitionPlace:
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


Refusals = Mapping[TopicPartition, HeadraceError]
Move = tuple[tuple[int, ...], tuple[int, ...]]
"""The replicas that are being added, and those that are to go."""

_Told = tuple[TopicPartition, int, str | None]


class ClusterAdmin:
    """Administration of a cluster that the caller opened."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def members(self) -> ClusterMembers:
        async def ask() -> ClusterMembers:
            answer: DescribeClusterResponse = await self._cluster.call(DescribeClusterRequest())
            raise_for(answer.error_code, answer.error_message)
            brokers = {
                told.broker_id: BrokerView(told.broker_id, Address(told.host, told.port), told.rack, told.is_draining)
                for told in answer.brokers
            }
            return ClusterMembers(answer.cluster_id, answer.controller_id, dict(sorted(brokers.items())))

        return await self._cluster.persist(ask)

    async def places(self, topics: Iterable[str] = ()) -> Sequence[PartitionPlace]:
        """Every partition of these topics, or of all; raises UnknownTopicOrPartition."""
        moves = await self.moves()
        request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name) for name in sorted({*topics})])
        found: list[PartitionPlace] = []
        is_more = True
        while is_more:
            answer: DescribeTopicPartitionsResponse = await self._cluster.persist(partial(self._cluster.call, request))
            for topic in answer.topics:
                found += _places(topic, moves)
            is_more = answer.next_cursor is not None
            if answer.next_cursor is not None:
                request.cursor = Cursor(answer.next_cursor.topic_name, answer.next_cursor.partition_index)
        return sorted(found, key=lambda place: place.target)

    async def min_insync(self, topics: Iterable[str]) -> Mapping[str, int]:
        """How many replicas each topic wants in sync before it takes writes with acks=all."""
        wanted: dict[str, int] = {}

        async def ask(names: Sequence[str]) -> None:
            resources = [
                DescribeConfigsResource(
                    resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=[_MIN_INSYNC]
                )
                for name in names
            ]
            answer: DescribeConfigsResponse = await self._cluster.call(DescribeConfigsRequest(resources=resources))
            for told in answer.results:
                if told.error_code in (UnknownTopicOrPartition.code, UnknownTopicId.code):
                    continue  # deleted meanwhile
                raise_for(told.error_code, told.error_message)
                wanted[told.resource_name] = int(only(told.configs).value or 1)

        for names in _chunks(sorted({*topics}), _TOPICS_PER_REQUEST):
            await self._cluster.persist(partial(ask, names))
        return wanted

    async def moves(self) -> Mapping[TopicPartition, Move]:
        """The partitions that are moving."""

        async def ask() -> Mapping[TopicPartition, Move]:
            request = ListPartitionReassignmentsRequest(topics=None, timeout_ms=self._timeout_ms)
            answer: ListPartitionReassignmentsResponse = await self._cluster.call(request)
            raise_for(answer.error_code, answer.error_message)
            return {
                TopicPartition(topic.name, told.partition_index): (
                    tuple(told.adding_replicas),
                    tuple(told.removing_replicas),
                )
                for topic in answer.topics
                for told in topic.partitions
            }

        return await self._cluster.persist(ask)

    async def move(self, replicas: Mapping[TopicPartition, Sequence[int] | None]) -> Refusals:
        """Begin to move partitions to these replicas; None ends a move that is under way, back to where it began."""

        async def ask(targets: Sequence[TopicPartition]) -> Iterable[_Told]:
            topics: dict[str, list[ReassignablePartition]] = defaultdict(list)
            for target in targets:
                wanted = replicas[target]
                topics[target.topic].append(
                    ReassignablePartition(target.partition, None if wanted is None else list(wanted))
                )
            request = AlterPartitionReassignmentsRequest(
                timeout_ms=self._timeout_ms, topics=[ReassignableTopic(name, asked) for name, asked in topics.items()]
            )
            answer: AlterPartitionReassignmentsResponse = await self._cluster.call(request)
            raise_for(answer.error_code, answer.error_message)
            return [
                (TopicPartition(topic.name, told.partition_index), told.error_code, told.error_message)
                for topic in answer.responses
                for told in topic.partitions
            ]

        return await self._each(replicas, ask)

    async def prefer(self, targets: Iterable[TopicPartition]) -> Refusals:
        """Let the preferred replicas lead, which are the first of each."""
        return await self._elect(targets, _PREFERRED)

    async def elect_unclean(self, targets: Iterable[TopicPartition]) -> Refusals:
        """Let a replica lead that may lack committed records, which are then lost."""
        return await self._elect(targets, _UNCLEAN)

    async def drain(self, node_id: int, *, is_drained: bool = True) -> None:
        """Let a broker hold nothing any more, or take part again."""

        async def ask() -> None:
            request = DrainBrokerRequest(broker_id=node_id, is_drained=is_drained)
            answer: DrainBrokerResponse = await self._cluster.call(request)
            raise_for(answer.error_code, answer.error_message)

        await self._cluster.persist(ask)

    async def throttle(self, bytes_per_second: int | None) -> None:
        """The most that each broker copies in a second to catch up; None for no bound."""
        operation, value = (_DELETE, None) if bytes_per_second is None else (_SET, str(bytes_per_second))
        change = AlterableConfig(THROTTLE, operation, value)
        resource = AlterConfigsResource(ResourceType.BROKER, _OF_ALL_BROKERS, [change])

        async def ask() -> None:
            request = IncrementalAlterConfigsRequest(resources=[resource])
            answer: IncrementalAlterConfigsResponse = await self._cluster.call(request)
            for told in answer.responses:
                raise_for(told.error_code, told.error_message)

        await self._cluster.persist(ask)

    async def sizes(self, node_id: int, targets: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The bytes that these partitions take on a broker's disk; those that it does not hold are left out."""
        topics = [DescribableLogDirTopic(name, indexes) for name, indexes in _by_topic(targets).items()]

        async def ask() -> Mapping[TopicPartition, int]:
            answer: DescribeLogDirsResponse = await self._cluster.call(
                DescribeLogDirsRequest(topics=topics), node_id=node_id
            )
            raise_for(answer.error_code)
            return {
                TopicPartition(topic.name, told.partition_index): told.partition_size
                for folder in answer.results
                for topic in folder.topics
                for told in topic.partitions
            }

        return await self._cluster.persist(ask)

    async def _elect(self, targets: Iterable[TopicPartition], election_type: int) -> Refusals:
        async def ask(targets: Sequence[TopicPartition]) -> Iterable[_Told]:
            topics = [TopicPartitions(name, indexes) for name, indexes in _by_topic(targets).items()]
            request = ElectLeadersRequest(election_type, topics, timeout_ms=self._timeout_ms)
            answer: ElectLeadersResponse = await self._cluster.call(request)
            raise_for(answer.error_code)
            return [
                (TopicPartition(topic.topic, told.partition_id), told.error_code, told.error_message)
                for topic in answer.replica_election_results
                for told in topic.partition_result
            ]

        return await self._each(targets, ask)

    async def _each(
        self,
        targets: Iterable[TopicPartition],
        ask: Callable[[Sequence[TopicPartition]], Awaitable[Iterable[_Told]]],
    ) -> Refusals:
        """Ask for a share of them at a time; those that may succeed later are asked for again."""
        refused: dict[TopicPartition, HeadraceError] = {}

        async def attempt(share: set[TopicPartition]) -> None:
            again: HeadraceError | None = None
            for target, code, message in await ask(sorted(share)):
                error = refusal(code, message) if code else None
                if error is not None and error.retriable and not isinstance(error, _TOLD_AT_ONCE):
                    again = error
                    continue
                share.discard(target)
                if error is not None:
                    refused[target] = error
            if again is not None:
                raise again

        for share in _chunks(sorted({*targets}), _PARTITIONS_PER_REQUEST):
            await self._cluster.persist(partial(attempt, {*share}))
        return refused

    @property
    def _timeout_ms(self) -> int:
        return int(self._cluster.settings.request_timeout_seconds * 1000)


def _places(topic: Any, moves: Mapping[TopicPartition, Move]) -> Iterator[PartitionPlace]:
    if topic.error_code == UnknownTopicOrPartition.code:
        raise UnknownTopicOrPartition(f"there is no topic {topic.name!r}")
    raise_for(topic.error_code)
    for told in topic.partitions:
        target = TopicPartition(topic.name, told.partition_index)
        adding, removing = moves.get(target, ((), ()))
        yield PartitionPlace(
            target=target,
            leader=told.leader_id,
            leader_epoch=told.leader_epoch,
            replicas=tuple(told.replica_nodes),
            in_sync=tuple(told.isr_nodes),
            eligible=tuple(told.eligible_leader_replicas or ()),
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
