"""Classic consumer groups: membership, and requests about groups of any kind."""

from __future__ import annotations

from headrace.wire.codec.schema import BOOL, BYTES, INT8, INT16, INT32, STRING, ApiMessage, Part, array, wire

# FindCoordinator (10): find the coordinator of a group (type 0), a transactional id (1) or a share group (2, v6). v1
# adds the type; v3 is flexible; v4 adds several keys per request, v5 TRANSACTION_ABORTABLE.


class FindCoordinatorRequest(ApiMessage, versions=(0, 6), flexible_since=3):
    key: str = wire(STRING, until=3)
    key_type: int = wire(INT8, since=1)
    coordinator_keys: list[str] = array(STRING, since=4)


class Coordinator(Part):
    key: str = wire(STRING)
    node_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=4, default=None)


class FindCoordinatorResponse(ApiMessage, versions=(0, 6), flexible_since=3):
    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16, until=3)
    error_message: str | None = wire(STRING, since=1, until=3, nullable=1, default=None)
    node_id: int = wire(INT32, until=3)
    host: str = wire(STRING, until=3)
    port: int = wire(INT32, until=3)
    coordinators: list[Coordinator] = array(Coordinator, since=4)


# JoinGroup (11): join a group, and wait for the next generation. v1 adds the rebalance timeout; in v4 a new member is
# given an id and must join again with it; v5 adds static members; v6 is flexible; v7 adds the protocol type, v8 the
# reason, v9 `skip_assignment`.


class JoinGroupRequestProtocol(Part):
    name: str = wire(STRING)
    metadata: bytes = wire(BYTES)


class JoinGroupRequest(ApiMessage, versions=(0, 9), flexible_since=6):
    group_id: str = wire(STRING)
    session_timeout_ms: int = wire(INT32)
    rebalance_timeout_ms: int = wire(INT32, since=1, default=-1)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, since=5, nullable=5, default=None)
    protocol_type: str = wire(STRING)
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = wire(STRING, since=8, nullable=8, default=None)


class JoinGroupResponseMember(Part):
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, since=5, nullable=5, default=None)
    metadata: bytes = wire(BYTES)


class JoinGroupResponse(ApiMessage, versions=(0, 9), flexible_since=6):
    throttle_time_ms: int = wire(INT32, since=2)
    error_code: int = wire(INT16)
    generation_id: int = wire(INT32, default=-1)
    protocol_type: str | None = wire(STRING, since=7, nullable=7, default=None)
    protocol_name: str | None = wire(STRING, nullable=7)
    leader: str = wire(STRING)
    skip_assignment: bool = wire(BOOL, since=9)
    member_id: str = wire(STRING)
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)


# SyncGroup (14): the group leader sends the assignment, and each member receives its part. v3 adds static members; v4
# is flexible; v5 repeats the protocol, so that it can be validated.


class SyncGroupRequestAssignment(Part):
    member_id: str = wire(STRING)
    assignment: bytes = wire(BYTES)


class SyncGroupRequest(ApiMessage, versions=(0, 5), flexible_since=4):
    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, since=3, nullable=3, default=None)
    protocol_type: str | None = wire(STRING, since=5, nullable=5, default=None)
    protocol_name: str | None = wire(STRING, since=5, nullable=5, default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(ApiMessage, versions=(0, 5), flexible_since=4):
    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    protocol_type: str | None = wire(STRING, since=5, nullable=5, default=None)
    protocol_name: str | None = wire(STRING, since=5, nullable=5, default=None)
    assignment: bytes = wire(BYTES)


# Heartbeat (12): keep a member alive; the response says whether the group is rebalancing. v3 adds static members, v4
# is flexible.


class HeartbeatRequest(ApiMessage, versions=(0, 4), flexible_since=4):
    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, since=3, nullable=3, default=None)


class HeartbeatResponse(ApiMessage, versions=(0, 4), flexible_since=4):
    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)


# LeaveGroup (13): remove one member, or several from v3 on, including static ones. v4 is flexible, v5 adds the
# reason.


class MemberIdentity(Part):
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, nullable=3, default=None)
    reason: str | None = wire(STRING, since=5, nullable=5, default=None)


class LeaveGroupRequest(ApiMessage, versions=(0, 5), flexible_since=4):
    group_id: str = wire(STRING)
    member_id: str = wire(STRING, until=2)
    members: list[MemberIdentity] = array(MemberIdentity, since=3)


class MemberResponse(Part):
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, nullable=3, default=None)
    error_code: int = wire(INT16)


class LeaveGroupResponse(ApiMessage, versions=(0, 5), flexible_since=4):
    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    members: list[MemberResponse] = array(MemberResponse, since=3)


# DescribeGroups (15): return the state and the members of groups. v3 adds authorized operations, v4 static members;
# v5 is flexible; v6 adds an error message and GROUP_ID_NOT_FOUND.


class DescribeGroupsRequest(ApiMessage, versions=(0, 6), flexible_since=5):
    groups: list[str] = array(STRING)
    include_authorized_operations: bool = wire(BOOL, since=3)


class DescribedGroupMember(Part):
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, since=4, nullable=4, default=None)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    member_metadata: bytes = wire(BYTES)
    member_assignment: bytes = wire(BYTES)


class DescribedGroup(Part):
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, since=6, nullable=6, default=None)
    group_id: str = wire(STRING)
    group_state: str = wire(STRING)
    protocol_type: str = wire(STRING)
    protocol_data: str = wire(STRING)
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = wire(INT32, since=3, default=-2147483648)


class DescribeGroupsResponse(ApiMessage, versions=(0, 6), flexible_since=5):
    throttle_time_ms: int = wire(INT32, since=1)
    groups: list[DescribedGroup] = array(DescribedGroup)


# ListGroups (16): list the groups that this broker coordinates. v3 is flexible, v4 filters by state, v5 by type.


class ListGroupsRequest(ApiMessage, versions=(0, 5), flexible_since=3):
    states_filter: list[str] = array(STRING, since=4)
    types_filter: list[str] = array(STRING, since=5)


class ListGroupsEntry(Part):
    group_id: str = wire(STRING)
    protocol_type: str = wire(STRING)
    group_state: str = wire(STRING, since=4)
    group_type: str = wire(STRING, since=5)


class ListGroupsResponse(ApiMessage, versions=(0, 5), flexible_since=3):
    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    groups: list[ListGroupsEntry] = array(ListGroupsEntry)


# DeleteGroups (42): delete empty groups and their offsets. v2 is flexible.


class DeleteGroupsRequest(ApiMessage, versions=(0, 2), flexible_since=2):
    groups_names: list[str] = array(STRING)


class DeletableGroupResult(Part):
    group_id: str = wire(STRING)
    error_code: int = wire(INT16)


class DeleteGroupsResponse(ApiMessage, versions=(0, 2), flexible_since=2):
    throttle_time_ms: int = wire(INT32)
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
