"""FindCoordinator (10): who coordinates a group (type 0), a transaction (1) or a share group (2, v6).

v1 adds the type, v3 is flexible, v4 asks for many keys at once, v5 tells of aborted transactions.
"""

from __future__ import annotations

from headrace.wire.schema import INT8, INT16, INT32, STRING, array, message, part, wire


@message(versions=(0, 6), flexible_since=3)
class FindCoordinatorRequest:
    key: str = wire(STRING, until=3)
    key_type: int = wire(INT8, since=1)
    coordinator_keys: list[str] = wire(array(STRING), since=4)


@part
class Coordinator:
    key: str = wire(STRING)
    node_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=4, default=None)


@message(versions=(0, 6), flexible_since=3)
class FindCoordinatorResponse:
    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16, until=3)
    error_message: str | None = wire(STRING, since=1, until=3, nullable=1, default=None)
    node_id: int = wire(INT32, until=3)
    host: str = wire(STRING, until=3)
    port: int = wire(INT32, until=3)
    coordinators: list[Coordinator] = wire(array(Coordinator), since=4)
