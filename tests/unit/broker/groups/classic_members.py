"""Simulated members of classic groups, and requests that administer groups and their offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.errors import MemberIdRequired
from headrace.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from headrace.wire.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from headrace.wire.state_records.consumer_protocol import ConsumerProtocolSubscription, encode_subscription

GROUP = "readers"


class ClassicMember:
    def __init__(
        self, simulated_broker: SimulatedBroker, *topics: str, group: str = GROUP, instance_id: str | None = None
    ) -> None:
        self.simulated_broker = simulated_broker
        self.group = group
        self.instance_id = instance_id
        self.id = ""
        self.generation = -1
        self.leader = ""
        self.protocol = "range"
        self._metadata = encode_subscription(ConsumerProtocolSubscription(topics=list(topics or ("t",))))

    @property
    def leads(self) -> bool:
        return self.id == self.leader

    def begin_join(self, version: int = 5, session_timeout_ms: int = 10_000) -> asyncio.Task[Any]:
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=20_000,
            member_id=self.id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=self.protocol, metadata=self._metadata)],
        )
        return self.simulated_broker.begin_send(request, version)

    async def join(self, version: int = 5, session_timeout_ms: int = 10_000) -> Any:
        """Join; if the response assigns a member id first, join again with it."""
        response = await self.begin_join(version, session_timeout_ms)
        if response.error_code == MemberIdRequired.code:
            self.id = response.member_id
            response = await self.begin_join(version, session_timeout_ms)
        return self.apply_response(response)

    def apply_response(self, response: Any) -> Any:
        if response.error_code == 0:
            self.id, self.generation, self.leader = response.member_id, response.generation_id, response.leader
        return response

    def begin_sync(self, assignments: Mapping[str, bytes] | None = None, version: int = 5) -> asyncio.Task[Any]:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ],
        )
        return self.simulated_broker.begin_send(request, version)

    async def sync(self, assignments: Mapping[str, bytes] | None = None, version: int = 5) -> Any:
        return await self.begin_sync(assignments, version)

    async def enter(self) -> None:
        """Be the only member of a stable group."""
        assert (await self.join()).error_code == 0
        assert (await self.sync({self.id: b"everything"})).error_code == 0

    async def heartbeat(self, version: int = 4) -> int:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance_id,
        )
        return int((await self.simulated_broker.send(request, version)).error_code)

    async def leave(self) -> int:
        identity = MemberIdentity(member_id=self.id, group_instance_id=self.instance_id)
        (member,) = (
            await self.simulated_broker.send(LeaveGroupRequest(group_id=self.group, members=[identity]), 5)
        ).members
        return int(member.error_code)

    async def commit(self, offset: int, topic: str = "t", **options: Any) -> int:
        return await commit(self.simulated_broker, offset, topic, self.group, self.generation, self.id, **options)


def commit_request(
    offset: int, topic: str = "t", group: str = GROUP, generation: int = -1, member_id: str = "", metadata: str = ""
) -> OffsetCommitRequest:
    requested = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=metadata)
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[requested])],
    )


async def commit(simulated_broker: SimulatedBroker, offset: int, *rest: Any, version: int = 8, **options: Any) -> int:
    """Commit for partition 0 of one topic; the error."""
    response = await simulated_broker.send(commit_request(offset, *rest, **options), version)
    return int(response.topics[0].partitions[0].error_code)


async def committed(
    simulated_broker: SimulatedBroker, topic: str = "t", group: str = GROUP, version: int = 7
) -> tuple[int, str]:
    """Offset and metadata of partition 0."""
    requested = [OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
    response = await simulated_broker.send(OffsetFetchRequest(group_id=group, topics=requested), version)
    assert response.error_code == 0
    found = response.topics[0].partitions[0]
    assert found.error_code == 0
    return found.committed_offset, found.metadata


async def describe(simulated_broker: SimulatedBroker, group: str = GROUP, version: int = 6) -> Any:
    (described,) = (await simulated_broker.send(DescribeGroupsRequest(groups=[group]), version)).groups
    return described


async def listed(simulated_broker: SimulatedBroker, **filters: list[str]) -> dict[str, str]:
    """The state of every group."""
    response = await simulated_broker.send(ListGroupsRequest(**filters), 5)
    assert response.error_code == 0
    return {group.group_id: group.group_state for group in response.groups}


async def delete_group(simulated_broker: SimulatedBroker, group: str = GROUP) -> int:
    (result,) = (await simulated_broker.send(DeleteGroupsRequest(groups_names=[group]), 2)).results
    return int(result.error_code)
