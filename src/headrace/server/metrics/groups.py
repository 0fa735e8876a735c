"""Metrics of classic groups, consumer groups and share groups: members, offsets and lag, under kafka_exporter's names.

- The coordinator of a group reports its committed offsets. It knows the log end offsets of partitions with a local
  replica, and requests the others from their leaders; if a leader does not respond in time, the lag is omitted.
- The lag of a share group is the backlog of its subscription, which the leader of each partition reports. The
  coordinator reports the members.
- Above a limit there is one sample per group and topic, `partition="all"`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from headrace.broker.broker import Broker
from headrace.model.errors import HeadraceError
from headrace.runtime.inline_start import switch_to_task
from headrace.runtime.tasks import CooperativeYield
from headrace.server.metrics.exposition import Exposition, format_labels
from headrace.server.metrics.queues import QueueStats
from headrace.server.metrics.topics import ALL, SERIES_MAX
from headrace.wire.messages.fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

_RESPONSE_SECONDS = 1.0
_CONNECTION_KEY = "metrics"
_CONSUMER, _END = -1, -1

TopicPartition = tuple[str, int]


class GroupPosition(NamedTuple):
    """The position of a group in one partition; the lag is None if the log end offset is unknown."""

    group: str
    topic: str
    partition: int | str
    offset: int
    lag: int | None


async def add_groups(
    out: Exposition, broker: Broker, queues: Sequence[QueueStats], yield_turn: CooperativeYield
) -> None:
    members: dict[str, int] = {}
    commits: dict[tuple[str, TopicPartition], int] = {}
    for shard in list(broker.coordinator):
        members |= {group.group_id: len(group.roster) for group in shard.classic.values()}
        members |= {group.group_id: len(group.state.metadata_by_member) for group in shard.consumers.groups.values()}
        members |= {group.group_id: len(group.members) for group in shard.shares.groups.values()}
        for group_id in list(shard.offsets.groups()):
            await yield_turn()
            for topic, index, committed in shard.offsets.fetch_all(group_id):
                commits[group_id, (topic, index)] = committed.offset
    for group_id, count in members.items():
        await yield_turn()
        out.add("kafka_consumergroup_members", count, format_labels(consumergroup=group_id))
    ends = await _end_offsets(broker, {place for _, place in commits})
    positions: dict[tuple[str, TopicPartition], GroupPosition] = {}
    for (group_id, place), offset in commits.items():
        await yield_turn()
        lag = max(ends[place] - offset, 0) if place in ends else None
        positions[group_id, place] = GroupPosition(group_id, *place, offset, lag)
    for queue in queues:
        await yield_turn()
        # A consumer group and a subscription may have the same name.
        position = GroupPosition(queue.subscription, queue.topic, queue.partition, queue.floor, queue.counts.backlog)
        positions.setdefault((queue.subscription, (queue.topic, queue.partition)), position)
    sums = await _sum_positions(positions.values(), yield_turn)
    for position in positions.values() if len(positions) <= SERIES_MAX else sums:
        await yield_turn()
        where = format_labels(consumergroup=position.group, topic=position.topic, partition=position.partition)
        out.add("kafka_consumergroup_current_offset", position.offset, where)
        if position.lag is not None:
            out.add("kafka_consumergroup_lag", position.lag, where)
    for position in sums:
        await yield_turn()
        where = format_labels(consumergroup=position.group, topic=position.topic)
        out.add("kafka_consumergroup_current_offset_sum", position.offset, where)
        if position.lag is not None:
            out.add("kafka_consumergroup_lag_sum", position.lag, where)


async def _sum_positions(positions: Iterable[GroupPosition], yield_turn: CooperativeYield) -> list[GroupPosition]:
    """Sum per group and topic; the lag includes only partitions whose lag is known."""
    sums: dict[tuple[str, str], GroupPosition] = {}
    for one in positions:
        await yield_turn()
        so_far = sums.get((one.group, one.topic))
        if so_far is None:
            sums[one.group, one.topic] = one._replace(partition=ALL)
        else:
            lags = [lag for lag in (so_far.lag, one.lag) if lag is not None]
            lag = sum(lags) if lags else None
            sums[one.group, one.topic] = so_far._replace(offset=so_far.offset + one.offset, lag=lag)
    return list(sums.values())


async def _end_offsets(broker: Broker, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the end offsets of the partitions for which they are known."""
    ends: dict[TopicPartition, int] = {}
    requested: dict[int, list[TopicPartition]] = defaultdict(list)
    for topic, index in places:
        found = broker.catalogue.find(topic)
        if found is None or index not in found.partition_records:
            continue
        held = found.replicas.get(index)
        if held is not None:  # a follower's high watermark may be behind
            ends[topic, index] = held.high_watermark
        else:
            requested[found.partition_records[index].leader].append((topic, index))
    if requested:
        await switch_to_task()
        async with asyncio.TaskGroup() as tasks:
            for node_id, partitions_of_leader in requested.items():
                tasks.create_task(_request_end_offsets(broker, node_id, partitions_of_leader, ends))
    return ends


async def _request_end_offsets(
    broker: Broker, node_id: int, places: Sequence[TopicPartition], ends: dict[TopicPartition, int]
) -> None:
    topics: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
    for topic, index in places:
        topics[topic].append(ListOffsetsPartition(partition_index=index, timestamp=_END))
    request = ListOffsetsRequest(
        replica_id=_CONSUMER,
        topics=[ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        timeout_ms=int(_RESPONSE_SECONDS * 1000),
    )
    try:
        response: ListOffsetsResponse = await broker.cluster.peers.call(
            node_id, request, timeout_seconds=_RESPONSE_SECONDS, connection_key=_CONNECTION_KEY
        )
    except (HeadraceError, OSError):
        return  # the metrics of that broker, or their absence, show the problem
    for found in response.topics:
        for one in found.partitions:
            if not one.error_code:
                ends[found.name, one.partition_index] = one.offset
