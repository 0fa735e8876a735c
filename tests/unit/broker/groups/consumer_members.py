"""Simulated members of groups that use the consumer protocol."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.broker.groups.classic_members import GROUP
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.machines.groups.assignors import TopicIdPartition
from headrace.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from headrace.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)


class ConsumerMember:
    """The member revokes partitions at once and reports it in its next heartbeat."""

    def __init__(
        self, simulated_broker: SimulatedBroker, member_id: str, *topics: str, group: str = GROUP, **more: Any
    ) -> None:
        self.simulated_broker = simulated_broker
        self.group = group
        self.id = member_id
        self.topics = list(topics)
        self.more = more
        self.epoch = 0
        self.owned: set[TopicIdPartition] = set()

    @property
    def indexes(self) -> list[int]:
        return sorted(index for _, index in self.owned)

    def begin_beat(self, version: int = 1, **changes: Any) -> asyncio.Task[Any]:
        fields: dict[str, Any] = {"member_epoch": self.epoch, "topic_partitions": self._owned(), **self.more}
        if self.epoch == 0:
            fields |= {"subscribed_topic_names": self.topics, "rebalance_timeout_ms": 20_000}
        request = ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self.id, **{**fields, **changes})
        return self.simulated_broker.begin_send(request, version)

    async def beat(self, version: int = 1, **changes: Any) -> Any:
        response = await self.begin_beat(version, **changes)
        if response.error_code == 0:
            self.id, self.epoch = response.member_id, response.member_epoch
            if response.assignment is not None:
                result = response.assignment.topic_partitions
                self.owned = {(topic.topic_id, index) for topic in result for index in topic.partitions}
        return response

    async def leave(self, epoch: int = -1) -> int:
        request = ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self.id, member_epoch=epoch, **self.more)
        return int((await self.simulated_broker.send(request, 1)).error_code)

    async def commit(self, offset: int, topic: str = "t", **changes: Any) -> int:
        fields = {"generation_id_or_member_epoch": self.epoch, "member_id": self.id, **changes}
        requested = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topics = [OffsetCommitRequestTopic(name=topic, partitions=[requested])]
        response = await self.simulated_broker.send(
            OffsetCommitRequest(group_id=self.group, topics=topics, **fields), 9
        )
        return int(response.topics[0].partitions[0].error_code)

    def _owned(self) -> list[TopicPartitions]:
        return [TopicPartitions(topic_id=topic_id, partitions=[index]) for topic_id, index in sorted(self.owned)]


async def settle(*members: ConsumerMember) -> None:
    for _ in range(4):
        for member in members:
            assert (await member.beat()).error_code == 0


async def describe_consumers(simulated_broker: SimulatedBroker, group: str = GROUP) -> Any:
    (described,) = (await simulated_broker.send(ConsumerGroupDescribeRequest(group_ids=[group]), 1)).groups
    return described
