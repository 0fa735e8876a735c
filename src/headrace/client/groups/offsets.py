"""Find offsets by timestamp at the leaders, and read and commit group offsets at the coordinator."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.client.cluster import Cluster
from headrace.client.errors import raise_for_code
from headrace.client.metadata import TopicPartition, partitions_by_topic
from headrace.model.errors import HeadraceError
from headrace.wire.messages.fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from headrace.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)

END = -1
START = -2
_CONSUMER = -1
_NAMES_UNTIL = 9  # OffsetCommit and OffsetFetch name topics by id from version 10 on


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """The first offset at or after a timestamp; both are -1 if there is none."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """The member and generation that commits; by default none, which the coordinator does not check."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed offset, which is the next one to read."""

    offset: int
    metadata: str = ""


async def find_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    deadline_seconds: float | None = None,
) -> dict[TopicPartition, FoundOffset]:
    """The offset for a timestamp (ms, START or END) of each partition; queries the leaders concurrently. With
    `read_committed`, END is the last stable offset."""
    found: dict[TopicPartition, FoundOffset] = {}

    async def ask_all() -> None:
        by_leader = await cluster.partitions_by_leader(target for target in wanted if target not in found)
        failures: list[HeadraceError] = []

        async def ask(node_id: int, targets: list[TopicPartition]) -> None:
            try:
                requested = {target: wanted[target] for target in targets}
                found.update(await _list_offsets_at_leader(cluster, node_id, requested, read_committed=read_committed))
            except HeadraceError as error:
                failures.append(error)

        async with asyncio.TaskGroup() as group:
            for node_id, targets in by_leader.items():
                group.create_task(ask(node_id, targets))
        for failure in sorted(failures, key=lambda error: error.retriable):
            raise failure

    await cluster.call_with_retries(ask_all, deadline_seconds=deadline_seconds)
    return found


async def _list_offsets_at_leader(
    cluster: Cluster, node_id: int, wanted: Mapping[TopicPartition, int], *, read_committed: bool
) -> dict[TopicPartition, FoundOffset]:
    topics: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
    for (topic, partition), timestamp in wanted.items():
        topics[topic].append(ListOffsetsPartition(partition_index=partition, timestamp=timestamp))
    request = ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=1 if read_committed else 0,
        topics=[ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        timeout_ms=cluster.settings.request_timeout_ms,
    )
    response: ListOffsetsResponse = await cluster.call(request, node_id=node_id)
    found = {}
    for topic_result in response.topics:
        for result in topic_result.partitions:
            raise_for_code(result.error_code)
            found[TopicPartition(topic_result.name, result.partition_index)] = FoundOffset(
                result.offset, result.timestamp
            )
    return found


async def committed(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    deadline_seconds: float | None = None,
) -> dict[TopicPartition, Commit]:
    """The committed offsets of the group in these partitions (None: all), without partitions that have none."""
    topics = None if partitions is None else partitions_by_topic(partitions)

    async def attempt() -> dict[TopicPartition, Commit]:
        request = _offset_fetch(group, topics)
        response: OffsetFetchResponse = await cluster.call_coordinator(group, request, version_max=_NAMES_UNTIL)
        result = response.groups[0] if response.groups else response
        cluster.raise_for_coordinator(group, result.error_code)
        found = {}
        for topic in result.topics:
            for partition in topic.partitions:
                cluster.raise_for_coordinator(group, partition.error_code)
                if partition.committed_offset >= 0:
                    target = TopicPartition(topic.name, partition.partition_index)
                    found[target] = Commit(partition.committed_offset, partition.metadata or "")
        return found

    return await cluster.call_with_retries(attempt, deadline_seconds=deadline_seconds)


def _offset_fetch(group: str, topics: Mapping[str, list[int]] | None) -> OffsetFetchRequest:
    """A request in both forms: for one group (older brokers) and for several (newer brokers)."""
    wanted = None
    if topics is not None:
        wanted = [OffsetFetchRequestTopic(name=n, partition_indexes=p) for n, p in topics.items()]
    return OffsetFetchRequest(
        group_id=group,
        topics=wanted,
        groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)],
        require_stable=True,
    )


async def commit(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, Commit],
    membership: ConsumerGroupMetadata | None = None,
    *,
    deadline_seconds: float | None = None,
) -> None:
    """Commit offsets of the group; raises if any of them is rejected."""
    if not offsets:
        return
    who = membership or ConsumerGroupMetadata()
    topics: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for (topic, partition), commit_ in offsets.items():
        topics[topic].append(
            OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=commit_.offset,
                committed_metadata=commit_.metadata,
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=who.generation,
        member_id=who.member_id,
        group_instance_id=who.instance_id,
        topics=[OffsetCommitRequestTopic(name=n, partitions=p) for n, p in topics.items()],
    )

    async def attempt() -> None:
        response: OffsetCommitResponse = await cluster.call_coordinator(group, request, version_max=_NAMES_UNTIL)
        for topic in response.topics:
            for partition in topic.partitions:
                cluster.raise_for_coordinator(group, partition.error_code)

    await cluster.call_with_retries(attempt, deadline_seconds=deadline_seconds)
