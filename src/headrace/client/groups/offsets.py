"""Questions about offsets, asked at the right brokers: by time at the leaders, commits at the coordinator."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.client.cluster import Cluster
from headrace.client.errors import error_of_code, raise_for_code
from headrace.client.metadata import TopicPartition
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
    """The first offset at or after the time asked for; both are -1 when there is none."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """Who commits: a member of a generation, or (by default) nobody in particular."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """How far a group has read: `offset` is the next one to read."""

    offset: int
    metadata: str = ""


async def find_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    deadline_seconds: float | None = None,
) -> dict[TopicPartition, FoundOffset]:
    """The offset for a timestamp (ms, or START or END) of each partition; leaders are asked side by side. With
    `read_committed`, the END is where the first open transaction begins."""
    found: dict[TopicPartition, FoundOffset] = {}

    async def ask_all() -> None:
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for target in wanted:
            if target not in found:
                by_leader[(await cluster.partition(*target)).leader].append(target)
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
        timeout_ms=int(cluster.settings.request_timeout_seconds * 1000),
    )
    answer: ListOffsetsResponse = await cluster.call(request, node_id=node_id)
    found = {}
    for topic_answer in answer.topics:
        for told in topic_answer.partitions:
            raise_for_code(told.error_code)
            found[TopicPartition(topic_answer.name, told.partition_index)] = FoundOffset(told.offset, told.timestamp)
    return found


async def committed(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    deadline_seconds: float | None = None,
) -> dict[TopicPartition, Commit]:
    """What the group has committed for these partitions (None: all); those without a commit are left out."""
    topics: dict[str, list[int]] | None = None
    if partitions is not None:
        topics = defaultdict(list)
        for topic, partition in partitions:
            topics[topic].append(partition)

    async def ask() -> dict[TopicPartition, Commit]:
        request = _offset_fetch(group, topics)
        answer: OffsetFetchResponse = await cluster.call_coordinator(group, request, version_max=_NAMES_UNTIL)
        told = answer.groups[0] if answer.groups else answer
        _raise_for(cluster, group, told.error_code)
        found = {}
        for topic in told.topics:
            for partition in topic.partitions:
                _raise_for(cluster, group, partition.error_code)
                if partition.committed_offset >= 0:
                    target = TopicPartition(topic.name, partition.partition_index)
                    found[target] = Commit(partition.committed_offset, partition.metadata or "")
        return found

    return await cluster.call_with_retries(ask, deadline_seconds=deadline_seconds)


def _offset_fetch(group: str, topics: Mapping[str, list[int]] | None) -> OffsetFetchRequest:
    """The question in both forms: about one group, for older brokers, and about several, for newer ones."""
    one: list[OffsetFetchRequestTopic] | None = None
    many: list[OffsetFetchRequestTopic] | None = None
    if topics is not None:
        one = [OffsetFetchRequestTopic(name=n, partition_indexes=p) for n, p in topics.items()]
        many = [OffsetFetchRequestTopic(name=n, partition_indexes=p) for n, p in topics.items()]
    return OffsetFetchRequest(
        group_id=group,
        topics=one,
        groups=[OffsetFetchRequestGroup(group_id=group, topics=many)],
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
    """Remember how far the group has read; all of it or an error."""
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

    async def ask() -> None:
        answer: OffsetCommitResponse = await cluster.call_coordinator(group, request, version_max=_NAMES_UNTIL)
        for topic in answer.topics:
            for partition in topic.partitions:
                _raise_for(cluster, group, partition.error_code)

    await cluster.call_with_retries(ask, deadline_seconds=deadline_seconds)


def _raise_for(cluster: Cluster, group: str, code: int) -> None:
    if code:
        error = error_of_code(code)
        cluster.forget_coordinator_on_error(group, error)
        raise error
