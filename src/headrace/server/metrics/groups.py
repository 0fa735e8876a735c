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
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from headrace.broker.broker import Broker
from headrace.broker.led_groups import LedGroups
from headrace.model.errors import HeadraceError
from headrace.runtime.cooperative_yield import CooperativeYield
from headrace.runtime.eager import in_task
from headrace.server.metrics.exposition import Exposition, labelled
from headrace.server.metrics.queues import Queue
from headrace.server.metrics.topics import ALL, SERIES_MAX
from headrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

_ANSWER_SECONDS = 1.0
_LANE = "metrics"
_CONSUMER, _END = -1, -1

Place = tuple[str, int]


class Position(NamedTuple):
    """The position of a group in one partition; the lag is None if the log end offset is unknown."""

    group: str
    topic: str
    partition: int | str
    offset: int
    lag: int | None


async def add_groups(out: Exposition, broker: Broker, queues: Sequence[Queue], yield_turn: CooperativeYield) -> None:
    members: dict[str, int] = {}
    commits: dict[tuple[str, Place], int] = {}
    for led in list(broker.coordinator):
        members.update(_members(led))
        for group_id in list(led.offsets.groups()):
            await yield_turn()
            commits.update(_commits(led, group_id))
    for group_id, count in members.items():
        await yield_turn()
        out.add("kafka_consumergroup_members", count, labelled(consumergroup=group_id))
    ends = await _ends(broker, {place for _, place in commits})
    positions: dict[tuple[str, Place], Position] = {}
    for (group_id, place), offset in commits.items():
        await yield_turn()
        lag = max(ends[place] - offset, 0) if place in ends else None
        positions[group_id, place] = Position(group_id, *place, offset, lag)
    for queue in queues:
        await yield_turn()
        # A consumer group and a subscription may have the same name.
        position = Position(queue.subscription, queue.topic, queue.partition, queue.floor, queue.backlog)
        positions.setdefault((queue.subscription, (queue.topic, queue.partition)), position)
    sums = await _sums(positions.values(), yield_turn)
    for position in positions.values() if len(positions) <= SERIES_MAX else sums:
        await yield_turn()
        where = labelled(consumergroup=position.group, topic=position.topic, partition=position.partition)
        out.add("kafka_consumergroup_current_offset", position.offset, where)
        if position.lag is not None:
            out.add("kafka_consumergroup_lag", position.lag, where)
    for position in sums:
        await yield_turn()
        where = labelled(consumergroup=position.group, topic=position.topic)
        out.add("kafka_consumergroup_current_offset_sum", position.offset, where)
        if position.lag is not None:
            out.add("kafka_consumergroup_lag_sum", position.lag, where)


def _members(led: LedGroups) -> Iterator[tuple[str, int]]:
    for group in led.classic.values():
        yield group.group_id, group.member_count
    for consumers in led.consumers.groups.values():
        yield consumers.group_id, len(consumers.state.profiles)
    for shares in led.shares.groups.values():
        yield shares.group_id, len(shares.members)


def _commits(led: LedGroups, group_id: str) -> Iterator[tuple[tuple[str, Place], int]]:
    for topic, index, committed in led.offsets.fetch_all(group_id):
        yield (group_id, (topic, index)), committed.offset


async def _sums(positions: Iterable[Position], yield_turn: CooperativeYield) -> list[Position]:
    """Sum per group and topic; the lag includes only partitions whose lag is known."""
    sums: dict[tuple[str, str], Position] = {}
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


async def _ends(broker: Broker, places: Collection[Place]) -> dict[Place, int]:
    """Return the end offsets of the partitions for which they are known."""
    ends: dict[Place, int] = {}
    asked: dict[int, list[Place]] = defaultdict(list)
    for topic, index in places:
        found = broker.catalogue.find(topic)
        if found is None or index not in found.places:
            continue
        held = found.local(index)
        if held is not None:  # a follower's high watermark may be behind
            ends[topic, index] = held.high_watermark
        else:
            asked[found.places[index].leader].append((topic, index))
    if asked:
        await in_task()
        async with asyncio.TaskGroup() as tasks:
            for node_id, some in asked.items():
                tasks.create_task(_ask(broker, node_id, some, ends))
    return ends


async def _ask(broker: Broker, node_id: int, places: Sequence[Place], ends: dict[Place, int]) -> None:
    topics: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
    for topic, index in places:
        topics[topic].append(ListOffsetsPartition(partition_index=index, timestamp=_END))
    request = ListOffsetsRequest(
        replica_id=_CONSUMER,
        topics=[ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        timeout_ms=int(_ANSWER_SECONDS * 1000),
    )
    try:
        answer: ListOffsetsResponse = await broker.cluster.peers.call(
            node_id, request, timeout_seconds=_ANSWER_SECONDS, lane=_LANE
        )
    except (HeadraceError, OSError):
        return  # the metrics of that broker, or their absence, show the problem
    for told in answer.topics:
        for one in told.partitions:
            if not one.error_code:
                ends[told.name, one.partition_index] = one.offset
