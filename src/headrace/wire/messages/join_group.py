"""JoinGroup (11): become a member, and wait for the next generation.

v1 adds the rebalance timeout, v4 sends a new member back once with its id, v5 has static members, v6 is
flexible, v7 names the protocol type, v8 gives a reason, v9 can tell the leader to skip the assignment.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, BYTES, INT16, INT32, STRING, array, message, part, wire


@part
class JoinGroupRequestProtocol:
    name: str = wire(STRING)
    metadata: bytes = wire(BYTES)


@message(versions=(0, 9), flexible_since=6)
class JoinGroupRequest:
    group_id: str = wire(STRING)
    session_timeout_ms: int = wire(INT32)
    rebalance_timeout_ms: int = wire(INT32, since=1, default=-1)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, since=5, nullable=5, default=None)
    protocol_type: str = wire(STRING)
    protocols: list[JoinGroupRequestProtocol] = wire(array(JoinGroupRequestProtocol))
    reason: str | None = wire(STRING, since=8, nullable=8, default=None)


@part
class JoinGroupResponseMember:
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, since=5, nullable=5, default=None)
    metadata: bytes = wire(BYTES)


@message(versions=(0, 9), flexible_since=6)
class JoinGroupResponse:
    throttle_time_ms: int = wire(INT32, since=2)
    error_code: int = wire(INT16)
    generation_id: int = wire(INT32, default=-1)
    protocol_type: str | None = wire(STRING, since=7, nullable=7, default=None)
    protocol_name: str | None = wire(STRING, nullable=7)
    leader: str = wire(STRING)
    skip_assignment: bool = wire(BOOL, since=9)
    member_id: str = wire(STRING)
    members: list[JoinGroupResponseMember] = wire(array(JoinGroupResponseMember))
