"""LeaveGroup (13): up to v2 one member leaves; from v3 many, also static ones.

v4 is flexible, v5 gives a reason.
"""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, STRING, array, message, part, wire


@part
class MemberIdentity:
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, nullable=3, default=None)
    reason: str | None = wire(STRING, since=5, nullable=5, default=None)


@message(versions=(0, 5), flexible_since=4)
class LeaveGroupRequest:
    group_id: str = wire(STRING)
    member_id: str = wire(STRING, until=2)
    members: list[MemberIdentity] = wire(array(MemberIdentity), since=3)


@part
class MemberResponse:
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, nullable=3, default=None)
    error_code: int = wire(INT16)


@message(versions=(0, 5), flexible_since=4)
class LeaveGroupResponse:
    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    members: list[MemberResponse] = wire(array(MemberResponse), since=3)
