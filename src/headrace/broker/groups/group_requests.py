"""Requests of group members and group administrators, translated for the coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.broker.groups.group_shard import GroupShard
from headrace.broker.handlers import ReportErrors, RequestContext
from headrace.broker.security.security_requests import add_authorized_operations
from headrace.machines.groups.classic_group import ClassicGroup
from headrace.machines.groups.group_state import GroupState, JoinRequest, LeavingMember, SyncRequest
from headrace.machines.groups.group_topics import CONSUMER_PROTOCOL_TYPE
from headrace.model.errors import GroupIdNotFound, UnknownMemberId
from headrace.model.names import check_group_id
from headrace.runtime.entropy import Entropy
from headrace.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsEntry,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

_BATCHED_LEAVE_SINCE = 3
_NULL_PROTOCOL_SINCE = 7
_ERROR_FOR_UNKNOWN_GROUP_SINCE = 6
_CLASSIC = "classic"
_CONSUMER = "consumer"
_SHARE = "share"

ForgetSettled = Callable[[str, RequestContext], Awaitable[None]]


class GroupRequests:
    def __init__(self, coordinator: GroupCoordinator, forget_settled: ForgetSettled, entropy: Entropy) -> None:
        """`forget_settled` deletes the settled state of a share group, on all leaders."""
        self._coordinator = coordinator
        self._forget_settled = forget_settled
        self._entropy = entropy

    async def join(self, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
        stem = request.group_instance_id or context.client_id or ""
        # Before version 7 the name of the protocol could not be null.
        no_protocol = None if context.version >= _NULL_PROTOCOL_SINCE else ""
        error_response = JoinGroupResponse(member_id=request.member_id, protocol_name=no_protocol)
        with ReportErrors(error_response):
            check_group_id(request.group_id)
            groups = await self._coordinator.ensure(request.group_id)
            response = await groups.join(
                request.group_id,
                JoinRequest(
                    member_id=request.member_id,
                    new_member_id=f"{stem}-{self._entropy.uuid()}",
                    session_timeout_ms=request.session_timeout_ms,
                    rebalance_timeout_ms=request.rebalance_timeout_ms,
                    protocol_type=request.protocol_type,
                    protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
                    instance_id=request.group_instance_id,
                    client_id=context.client_id or "",
                    client_host=f"/{context.client_host}",
                    require_known_member_id=context.version >= 4,
                    skips_assignment=context.version >= 9,
                ),
            )
            if response.protocol_name is None:
                response.protocol_name = no_protocol
            return response
        return error_response

    async def sync(self, request: SyncGroupRequest, _context: RequestContext) -> SyncGroupResponse:
        return await self._groups(request.group_id).sync(
            request.group_id,
            SyncRequest(
                member_id=request.member_id,
                generation_id=request.generation_id,
                assignments={assignment.member_id: assignment.assignment for assignment in request.assignments},
                instance_id=request.group_instance_id,
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
            ),
        )

    async def heartbeat(self, request: HeartbeatRequest, _context: RequestContext) -> HeartbeatResponse:
        self._groups(request.group_id).heartbeat(
            request.group_id, request.member_id, request.generation_id, request.group_instance_id
        )
        return HeartbeatResponse()

    async def leave(self, request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
        if context.version >= _BATCHED_LEAVE_SINCE:
            departures = [LeavingMember(member.member_id, member.group_instance_id) for member in request.members]
        else:
            departures = [LeavingMember(request.member_id)]
        try:
            departed = await self._groups(request.group_id).leave(request.group_id, departures)
        except UnknownMemberId as error:
            # The group does not exist. The batched form of the request reports that per member.
            departed = [MemberResponse(one.member_id, one.instance_id, error.code) for one in departures]
        if context.version < _BATCHED_LEAVE_SINCE:
            return LeaveGroupResponse(error_code=departed[0].error_code)
        return LeaveGroupResponse(members=departed)

    async def describe(self, request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponse:
        groups = [self._describe(group_id, context.version) for group_id in request.groups]
        if request.include_authorized_operations:
            add_authorized_operations(groups)
        return DescribeGroupsResponse(groups=groups)

    async def list(self, request: ListGroupsRequest, _context: RequestContext) -> ListGroupsResponse:
        self._coordinator.ensure_loaded()
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        return ListGroupsResponse(
            groups=[
                group
                for group in self._listed()
                if (not states or group.group_state.lower() in states) and (not types or group.group_type in types)
            ]
        )

    async def delete(self, request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse:
        response = DeleteGroupsResponse()
        for group_id in dict.fromkeys(request.groups_names):
            result = DeletableGroupResult(group_id=group_id)
            with ReportErrors(result):
                share = self._coordinator.of(group_id).shares.groups.get(group_id)
                if share is not None:
                    share.ensure_no_members()
                    await self._forget_settled(group_id, context)
                await self._coordinator.of(group_id).delete(group_id)
            response.results.append(result)
        return response

    def _groups(self, group_id: str) -> GroupShard:
        check_group_id(group_id)
        return self._coordinator.of(group_id)

    def _listed(self) -> Iterator[ListGroupsEntry]:
        for groups in self._coordinator:
            for group in groups:
                if isinstance(group, ClassicGroup):
                    yield ListGroupsEntry(group.group_id, group.protocol_type or "", group.state.value, _CLASSIC)
                else:
                    yield ListGroupsEntry(group.group_id, CONSUMER_PROTOCOL_TYPE, group.phase.value, _CONSUMER)
            for share in groups.shares.groups.values():
                yield ListGroupsEntry(share.group_id, _SHARE, share.phase, _SHARE)

    def _describe(self, group_id: str, version: int) -> DescribedGroup:
        description = DescribedGroup(group_id=group_id)
        with ReportErrors(description):
            groups = self._coordinator.of(group_id)
            group = groups.classic.get(group_id)
            if group is not None:
                return group.describe()
            description.group_state = GroupState.DEAD.value
            if version >= _ERROR_FOR_UNKNOWN_GROUP_SINCE:
                is_other = group_id in groups.consumers or group_id in groups.shares
                reason = "is not a classic group" if is_other else "not found"
                raise GroupIdNotFound(f"Group {group_id} {reason}.")
        return description
