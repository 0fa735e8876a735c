"""Administer a cluster: replicas, reassignments, elections, drains and the replication throttle.

Calls are retried while their error is retriable. A call for many partitions can fail for some of them; it returns the
errors by partition instead of raising the first.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import islice
from typing import Any

from headrace.client.admin.config_requests import alter_configs, describe_configs
from headrace.client.admin.topic_admin import ResourceType, partition_sizes
from headrace.client.cluster import Cluster
from headrace.client.connections.address import Address
from headrace.client.errors import error_of_code, only_result, raise_for_code
from headrace.client.metadata import TopicPartition, partitions_by_topic
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
    DrainBrokerRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)

THROTTLED_RATE = "follower.replication.throttled.rate"

MIN_INSYNC = "min.insync.replicas"
_OF_ALL_BROKERS = ""
_PREFERRED, _UNCLEAN = 0, 1
_PARTITIONS_PER_REQUEST = 100  # a broker processes them one by one, within the request timeout
_TOPICS_PER_REQUEST = 500
_PROBE_SECONDS = 5.0
# An administrator who names a missing partition or a leader that is down should not wait for it.
_NOT_RETRIED = (UnknownTopicOrPartition, PreferredLeaderNotAvailable, EligibleLeadersNotAvailable)


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A live broker. A draining broker gives up all its replicas."""

    node_id: int
    address: Address
    rack: str | None
    is_draining: bool


@dataclass(frozen=True, slots=True)
class ClusterMembers:
    cluster_id: str
    controller_id: int
    brokers: Mapping[int, BrokerView]


class BrokerState(Enum):
    """What a broker says about itself. A broker without a session cannot reach the registry: it learns of no change of
    the cluster, and cannot make one."""

    OK = auto()
    WITHOUT_SESSION = auto()
    UNREACHABLE = auto()


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """The replicas of a partition. `eligible` replicas (ELR) have all committed records but are not in sync. `adding`
    and `removing` belong to a reassignment in progress; `replicas` contains both."""

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
        """Replicas that are not in sync, without those that are being added."""
        return tuple(node for node in self.replicas if node not in self.in_sync and node not in self.adding)


PartitionErrors = Mapping[TopicPartition, HeadraceError]
ReplicaChange = tuple[tuple[int, ...], tuple[int, ...]]
"""The replicas that are being added, and those that are being removed."""

_PartitionResult = tuple[TopicPartition, int, str | None]


class ClusterAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def members(self) -> ClusterMembers:
        response: DescribeClusterResponse = await self._cluster.call_until_success(DescribeClusterRequest())
        brokers = {
            result.broker_id: BrokerView(
                result.broker_id, Address(result.host, result.port), result.rack, result.is_draining
            )
            for result in response.brokers
        }
        return ClusterMembers(response.cluster_id, response.controller_id, dict(sorted(brokers.items())))

    async def broker_states(self, node_ids: Iterable[int]) -> Mapping[int, BrokerState]:
        """The state of each broker, requested from the broker itself. The members of the cluster include a broker that
        has died until its session ends."""
        async with asyncio.TaskGroup() as group:
            probes = {node_id: group.create_task(self._broker_state(node_id)) for node_id in node_ids}
        return {node_id: probe.result() for node_id, probe in probes.items()}

    async def _broker_state(self, node_id: int) -> BrokerState:
        try:
            response: DescribeClusterResponse = await self._cluster.call(
                DescribeClusterRequest(), node_id=node_id, timeout_seconds=_PROBE_SECONDS
            )
        except HeadraceError:
            return BrokerState.UNREACHABLE
        return BrokerState.WITHOUT_SESSION if response.session_invalid else BrokerState.OK

    async def places(self, topics: Iterable[str] = ()) -> Sequence[PartitionReplicas]:
        """Every partition of these topics, or of all; raises UnknownTopicOrPartition."""
        moves = await self.moves()
        request = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsTopic(name=name) for name in sorted({*topics})]
        )
        found: list[PartitionReplicas] = []
        while True:
            response: DescribeTopicPartitionsResponse = await self._cluster.call_with_retries(
                partial(self._cluster.call, request)
            )
            for topic in response.topics:
                found += _partition_replicas(topic, moves)
            if response.next_cursor is None:
                return sorted(found, key=lambda place: place.target)
            request.cursor = Cursor(response.next_cursor.topic_name, response.next_cursor.partition_index)

    async def min_insync(self, topics: Iterable[str]) -> Mapping[str, int]:
        wanted: dict[str, int] = {}

        async def call(names: Sequence[str]) -> None:
            resources = [
                DescribeConfigsResource(
                    resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=[MIN_INSYNC]
                )
                for name in names
            ]
            response: DescribeConfigsResponse = await self._cluster.call(DescribeConfigsRequest(resources=resources))
            for result in response.results:
                if result.error_code in (UnknownTopicOrPartition.code, UnknownTopicId.code):
                    continue  # deleted meanwhile
                raise_for_code(result.error_code, result.error_message)
                wanted[result.resource_name] = int(only_result(result.configs).value or 1)

        for names in _chunks(sorted({*topics}), _TOPICS_PER_REQUEST):
            await self._cluster.call_with_retries(partial(call, names))
        return wanted

    async def moves(self) -> Mapping[TopicPartition, ReplicaChange]:
        """The reassignments in progress."""
        request = ListPartitionReassignmentsRequest(topics=None, timeout_ms=self._cluster.settings.request_timeout_ms)
        response: ListPartitionReassignmentsResponse = await self._cluster.call_until_success(request)
        return {
            TopicPartition(topic.name, result.partition_index): (
                tuple(result.adding_replicas),
                tuple(result.removing_replicas),
            )
            for topic in response.topics
            for result in topic.partitions
        }

    async def move(self, replicas: Mapping[TopicPartition, Sequence[int] | None]) -> PartitionErrors:
        """Start to reassign partitions to these replicas; None cancels a reassignment in progress."""

        async def call(targets: Sequence[TopicPartition]) -> Iterable[_PartitionResult]:
            topics: dict[str, list[ReassignablePartition]] = defaultdict(list)
            for target in targets:
                wanted = replicas[target]
                topics[target.topic].append(
                    ReassignablePartition(target.partition, None if wanted is None else list(wanted))
                )
            request = AlterPartitionReassignmentsRequest(
                timeout_ms=self._cluster.settings.request_timeout_ms,
                topics=[ReassignableTopic(name, requested) for name, requested in topics.items()],
            )
            response: AlterPartitionReassignmentsResponse = await self._cluster.call(request)
            raise_for_code(response.error_code, response.error_message)
            return [
                (TopicPartition(topic.name, result.partition_index), result.error_code, result.error_message)
                for topic in response.responses
                for result in topic.partitions
            ]

        return await self._call_in_chunks(replicas, call)

    async def prefer(self, targets: Iterable[TopicPartition]) -> PartitionErrors:
        """Elect the preferred leader, the first replica, of each partition."""
        return await self._elect(targets, _PREFERRED)

    async def elect_unclean(self, targets: Iterable[TopicPartition]) -> PartitionErrors:
        """Elect a leader that may lack committed records, which are lost then."""
        return await self._elect(targets, _UNCLEAN)

    async def drain(self, node_id: int, *, is_drained: bool = True, reduces_replicas: bool = False) -> None:
        """Move all replicas off a broker, or let it hold replicas again. With `reduces_replicas`, the caller reduces
        the replicas of the topics that have more than there are other brokers; they do not move before."""
        await self._cluster.call_until_success(DrainBrokerRequest(node_id, is_drained, reduces_replicas))

    async def config(self, node_id: int, name: str) -> str | None:
        """The value of a broker's config."""
        (config,) = await describe_configs(self._cluster, (ResourceType.BROKER, str(node_id)), [name])
        return config.value

    async def throttle(self, bytes_per_second: int | None) -> None:
        """Limit the bytes per second that each broker replicates to catch up; None removes the limit."""
        rate = None if bytes_per_second is None else str(bytes_per_second)
        await alter_configs(self._cluster, (ResourceType.BROKER, _OF_ALL_BROKERS), {THROTTLED_RATE: rate})

    async def sizes(self, node_id: int, targets: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The bytes of these partitions on a broker's disk, without those that it has no replica of."""
        wanted = [*targets]
        return await self._cluster.call_with_retries(lambda: partition_sizes(self._cluster, node_id, wanted))

    async def _elect(self, targets: Iterable[TopicPartition], election_type: int) -> PartitionErrors:
        async def call(targets: Sequence[TopicPartition]) -> Iterable[_PartitionResult]:
            topics = [ElectLeadersTopic(name, indexes) for name, indexes in partitions_by_topic(targets).items()]
            request = ElectLeadersRequest(election_type, topics, timeout_ms=self._cluster.settings.request_timeout_ms)
            response: ElectLeadersResponse = await self._cluster.call(request)
            raise_for_code(response.error_code)
            return [
                (TopicPartition(topic.topic, result.partition_id), result.error_code, result.error_message)
                for topic in response.replica_election_results
                for result in topic.partition_result
            ]

        return await self._call_in_chunks(targets, call)

    async def _call_in_chunks(
        self,
        targets: Iterable[TopicPartition],
        call: Callable[[Sequence[TopicPartition]], Awaitable[Iterable[_PartitionResult]]],
    ) -> PartitionErrors:
        """Call for a limited number of partitions at a time; retry those whose error is retriable."""
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


def _chunks(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while chunk := [*islice(rest, size)]:
        yield chunk
