"""SyncGroup (14): the leader hands in the assignment, all members fetch theirs.

v3 static members, v4 is flexible, v5 repeats the protocol so that it can be checked.
"""

from __future__ import annotations

from headrace.wire.schema import BYTES, INT16, INT32, STRING, array, message, part, wire


@part
class SyncGroupRequestAssignment:
    member_id: str = wire(STRING)
    assignment: bytes = wire(BYTES)


@message(versions=(0, 5), flexible_since=4)
class SyncGroupRequest:
    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, since=3, nullable=3, default=None)
    protocol_type: str | None = wire(STRING, since=5, nullable=5, default=None)
    protocol_name: str | None = wire(STRING, since=5, nullable=5, default=None)
    assignments: list[SyncGroupRequestAssignment] = wire(array(SyncGroupRequestAssignment))


@message(versions=(0, 5), flexible_since=4)
class SyncGroupResponse:
    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    protocol_type: str | None = wire(STRING, since=5, nullable=5, default=None)
    protocol_name: str | None = wire(STRING, since=5, nullable=5, default=None)
    assignment: bytes = wire(BYTES)
