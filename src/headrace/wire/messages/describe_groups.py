"""DescribeGroups (15): state and members of groups.

v3 authorised operations, v4 static members, v5 is flexible, v6 has an error message and GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, BYTES, INT16, INT32, STRING, array, message, part, wire


@message(versions=(0, 6), flexible_since=5)
class DescribeGroupsRequest:
    groups: list[str] = wire(array(STRING))
    include_authorized_operations: bool = wire(BOOL, since=3)


@part
class DescribedGroupMember:
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, since=4, nullable=4, default=None)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    member_metadata: bytes = wire(BYTES)
    member_assignment: bytes = wire(BYTES)


@part
class DescribedGroup:
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, since=6, nullable=6, default=None)
    group_id: str = wire(STRING)
    group_state: str = wire(STRING)
    protocol_type: str = wire(STRING)
    protocol_data: str = wire(STRING)
    members: list[DescribedGroupMember] = wire(array(DescribedGroupMember))
    authorized_operations: int = wire(INT32, since=3, default=-2147483648)


@message(versions=(0, 6), flexible_since=5)
class DescribeGroupsResponse:
    throttle_time_ms: int = wire(INT32, since=1)
    groups: list[DescribedGroup] = wire(array(DescribedGroup))
