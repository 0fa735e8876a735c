"""ShareGroupHeartbeat and ShareGroupDescribe, served by the coordinator of the group."""

from __future__ import annotations

from headrace.broker.groups.consumer_group_requests import assignment_of, described_assignment
from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.broker.handlers import ReportErrors, RequestContext
from headrace.broker.security.security_requests import add_authorized_operations
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.share_groups.share_group import (
    SHARE_ASSIGNOR,
    ShareGroup,
    ShareHeartbeat,
    check_share_heartbeat,
)
from headrace.model.errors import GroupIdNotFound
from headrace.wire.messages.share_groups import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupMember,
)


class ShareGroupRequests:
    def __init__(self, coordinator: GroupCoordinator, catalogue: Catalogue) -> None:
        self._coordinator = coordinator
        self._catalogue = catalogue

    async def heartbeat(
        self, request: ShareGroupHeartbeatRequest, context: RequestContext
    ) -> ShareGroupHeartbeatResponse:
        heartbeat = _parse_heartbeat(request, context)
        check_share_heartbeat(heartbeat)
        groups = await self._coordinator.ensure(heartbeat.group_id)
        result = await groups.share_heartbeat(heartbeat)
        return ShareGroupHeartbeatResponse(
            member_id=result.member_id,
            member_epoch=result.member_epoch,
            heartbeat_interval_ms=result.heartbeat_interval_ms,
            assignment=assignment_of(result.assigned),
        )

    async def describe(
        self, request: ShareGroupDescribeRequest, _context: RequestContext
    ) -> ShareGroupDescribeResponse:
        groups = [await self._describe(group_id) for group_id in request.group_ids]
        if request.include_authorized_operations:
            add_authorized_operations(groups)
        return ShareGroupDescribeResponse(groups=groups)

    async def _describe(self, group_id: str) -> DescribedShareGroup:
        """Describe a group, and return when the described state is durable."""
        error_description = DescribedShareGroup(group_id=group_id)
        with ReportErrors(error_description):
            groups = self._coordinator.of(group_id)
            group = groups.shares.groups.get(group_id)
            if group is None:
                reason = "not found" if groups.find(group_id) is None else "is not a share group"
                raise GroupIdNotFound(f"Group {group_id} {reason}.")
            description = self._described(group)
            await groups.settle()
            return description
        return error_description

    def _described(self, group: ShareGroup) -> DescribedShareGroup:
        return DescribedShareGroup(
            group_id=group.group_id,
            group_state=group.phase,
            group_epoch=group.epoch,
            assignment_epoch=group.epoch,
            assignor_name=SHARE_ASSIGNOR,
            members=[self._member(group, member_id) for member_id in group.metadata_by_member],
        )

    def _member(self, group: ShareGroup, member_id: str) -> ShareGroupMember:
        member_metadata, member = group.metadata_by_member[member_id], group.members[member_id]
        return ShareGroupMember(
            member_id=member_id,
            rack_id=member_metadata.rack_id,
            member_epoch=member.epoch,
            client_id=member_metadata.client_id,
            client_host=member_metadata.client_host,
            subscribed_topic_names=sorted(member_metadata.topics),
            assignment=described_assignment(self._catalogue, member.assigned),
        )


def _parse_heartbeat(request: ShareGroupHeartbeatRequest, context: RequestContext) -> ShareHeartbeat:
    names = request.subscribed_topic_names
    return ShareHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        topics=None if names is None else frozenset(names),
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
    )
