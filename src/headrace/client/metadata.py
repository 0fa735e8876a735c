"""Immutable views of a cluster's metadata: brokers, topics, partitions and their leaders.

`merged` builds the next view from a Metadata response. The response of a lagging broker does not revert it:

- The leader of a partition is replaced only by a response with the same or a newer leader epoch.
- A topic keeps its known partitions, because partitions are only ever added.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from headrace.client.connections.address import Address
from headrace.model.errors import LeaderNotAvailable, UnknownTopicOrPartition
from headrace.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


def partitions_by_topic(targets: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in targets:
        topics[topic].append(partition)
    return topics


@dataclass(frozen=True, slots=True)
class PartitionView:
    topic: str
    partition: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]

    @property
    def leader(self) -> int:
        """The leader's node id; raises LeaderNotAvailable while there is none."""
        if self.leader_id < 0:
            raise LeaderNotAvailable(f"{self.topic}[{self.partition}] has no leader at present")
        return self.leader_id


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic; `partitions[n]` is partition n."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: tuple[PartitionView, ...]

    def check_partition(self, partition: int) -> None:
        """Raise UnknownTopicOrPartition unless the topic has this partition."""
        if not 0 <= partition < len(self.partitions):
            raise UnknownTopicOrPartition(
                f"topic {self.name!r} has partitions 0 to {len(self.partitions) - 1}, not {partition}"
            )

    @property
    def ready(self) -> bool:
        """Every partition has a leader."""
        return bool(self.partitions) and all(partition.leader_id >= 0 for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """`topic_errors` has the error codes of topics that the latest request named and the broker did not describe. Older
    ones are dropped, so that names of missing topics do not accumulate."""

    cluster_id: str | None = None
    controller_id: int = -1
    nodes: dict[int, Address] = field(default_factory=dict)
    topics: dict[str, TopicView] = field(default_factory=dict)
    topic_errors: dict[str, int] = field(default_factory=dict)

    def merged(self, response: MetadataResponse, *, complete: bool) -> ClusterView:
        """The view after a response; `complete` if it lists all topics, so that missing ones were deleted."""
        topics = {} if complete else dict(self.topics)
        topic_errors: dict[str, int] = {}
        for described in response.topics:
            if described.name is None:
                continue
            if described.error_code:
                topics.pop(described.name, None)
                topic_errors[described.name] = described.error_code
            else:
                topics[described.name] = _topic(described, self.topics.get(described.name))
        nodes = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
        return replace(
            self,
            cluster_id=response.cluster_id or self.cluster_id,
            controller_id=response.controller_id,
            nodes=nodes or self.nodes,
            topics=topics,
            topic_errors=topic_errors,
        )


def _topic(described: MetadataResponseTopic, known: TopicView | None) -> TopicView:
    assert described.name is not None
    if known is not None and known.topic_id != described.topic_id:
        known = None
    partitions = []
    for partition in sorted(described.partitions, key=lambda partition: partition.partition_index):
        index = partition.partition_index
        before = known.partitions[index] if known is not None and index < len(known.partitions) else None
        partitions.append(_partition(described.name, partition, before))
    if known is not None and known.topic_id.int:  # Kafka before 2.8 has no topic ids
        partitions += known.partitions[len(partitions) :]
    return TopicView(described.name, described.topic_id, described.is_internal, tuple(partitions))


def _partition(topic: str, described: MetadataResponsePartition, before: PartitionView | None) -> PartitionView:
    if before is not None and 0 <= described.leader_epoch < before.leader_epoch:
        return before
    return PartitionView(
        topic=topic,
        partition=described.partition_index,
        leader_id=described.leader_id,
        leader_epoch=described.leader_epoch,
        replicas=tuple(described.replica_nodes),
        in_sync=tuple(described.isr_nodes),
    )
