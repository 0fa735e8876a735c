"""Heartbeat (12): the member is alive; the answer says whether the group rebalances.

v3 static members, v4 flexible.
"""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, STRING, message, wire


@message(versions=(0, 4), flexible_since=4)
class HeartbeatRequest:
    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, since=3, nullable=3, default=None)


@message(versions=(0, 4), flexible_since=4)
class HeartbeatResponse:
    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
