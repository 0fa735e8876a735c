"""ConsumerGroupHeartbeat and ConsumerGroupDescribe, translated for the coordinator."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.broker.handlers import ReportErrors, RequestContext
from headrace.broker.security.security_requests import add_authorized_operations
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.groups.assignors import TopicIdPartition
from headrace.machines.groups.consumer_group import ConsumerGroup
from headrace.machines.groups.consumer_group_heartbeat import ConsumerHeartbeat, check_heartbeat
from headrace.machines.groups.consumer_group_state import partitions_by_topic_id
from headrace.model.errors import GroupIdNotFound
from headrace.runtime.entropy import Entropy
from headrace.wire.messages import consumer_groups as described
from headrace.wire.messages.consumer_groups import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
    TopicPartitions,
)

_CLASSIC_MEMBER = 0
_CONSUMER_MEMBER = 1


class ConsumerGroupRequests:
    def __init__(self, coordinator: GroupCoordinator, catalogue: Catalogue, entropy: Entropy) -> None:
        self._coordinator = coordinator
        self._catalogue = catalogue
        self._entropy = entropy

    async def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> ConsumerGroupHeartbeatResponse:
        beat = _parse_heartbeat(request, context)
        check_heartbeat(beat, context.version, self._coordinator.configs.consumer_config_of(beat.group_id).assignors)
        if not beat.member_id:  # version 0 only
            beat = replace(beat, member_id=str(self._entropy.uuid()))
        groups = await self._coordinator.ensure(beat.group_id)
        result = await groups.consumer_heartbeat(beat)
        return ConsumerGroupHeartbeatResponse(
            member_id=result.member_id,
            member_epoch=result.member_epoch,
            heartbeat_interval_ms=result.heartbeat_interval_ms,
            assignment=assignment_of(result.assigned),
        )

    async def describe(
        self, request: ConsumerGroupDescribeRequest, _context: RequestContext
    ) -> ConsumerGroupDescribeResponse:
        groups = [await self._describe(group_id) for group_id in request.group_ids]
        if request.include_authorized_operations:
            add_authorized_operations(groups)
        return ConsumerGroupDescribeResponse(groups=groups)

    async def _describe(self, group_id: str) -> DescribedConsumerGroup:
        """Return the description when the state that it contains is durable."""
        error_description = DescribedConsumerGroup(group_id=group_id)
        with ReportErrors(error_description):
            groups = self._coordinator.of(group_id)
            group = groups.find(group_id)
            description = self._described(group) if isinstance(group, ConsumerGroup) else None
            await groups.settle()
            if description is None:
                reason = "not found" if group is None else "is not a consumer group"
                raise GroupIdNotFound(f"Group {group_id} {reason}.")
            return description
        return error_description

    def _described(self, group: ConsumerGroup) -> DescribedConsumerGroup:
        return DescribedConsumerGroup(
            group_id=group.group_id,
            group_state=group.phase.value,
            group_epoch=group.state.epoch,
            assignment_epoch=group.state.target_epoch,
            assignor_name=group.assignor,
            members=[self._member(group, member_id) for member_id in group.state.metadata_by_member],
        )

    def _member(self, group: ConsumerGroup, member_id: str) -> described.ConsumerGroupMember:
        member_metadata = group.state.metadata_by_member[member_id]
        current_assignment = group.state.current_assignment(member_id)
        return described.ConsumerGroupMember(
            member_id=member_id,
            instance_id=member_metadata.instance_id,
            rack_id=member_metadata.rack_id,
            member_epoch=current_assignment.epoch,
            client_id=member_metadata.client_id,
            client_host=member_metadata.client_host,
            subscribed_topic_names=sorted(member_metadata.topics),
            subscribed_topic_regex=member_metadata.regex or None,
            assignment=described_assignment(self._catalogue, current_assignment.assigned),
            target_assignment=described_assignment(self._catalogue, group.state.target(member_id)),
            member_type=_CONSUMER_MEMBER if member_metadata.classic is None else _CLASSIC_MEMBER,
        )


def _parse_heartbeat(request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> ConsumerHeartbeat:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    return ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if names is None else frozenset(names),
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if owned is None else frozenset((one.topic_id, index) for one in owned for index in one.partitions),
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
    )


def assignment_of(assigned: Iterable[TopicIdPartition] | None) -> Assignment | None:
    """Return the assignment in the response to a heartbeat, None if it has not changed."""
    if assigned is None:
        return None
    topics = partitions_by_topic_id(assigned).items()
    return Assignment([TopicPartitions(topic_id=topic_id, partitions=indexes) for topic_id, indexes in topics])


def described_assignment(catalogue: Catalogue, partitions: Iterable[TopicIdPartition]) -> described.DescribedAssignment:
    """Return the assignment without deleted topics, which have no names."""
    topics = ((catalogue.find_by_id(id_), indexes) for id_, indexes in partitions_by_topic_id(partitions).items())
    return described.DescribedAssignment(
        topic_partitions=[
            described.DescribedTopicPartitions(topic_id=topic.id, topic_name=topic.name, partitions=indexes)
            for topic, indexes in topics
            if topic is not None
        ]
    )
