"""DeleteGroups (42): forget empty groups and their offsets. v2 is flexible."""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, STRING, array, message, part, wire


@message(versions=(0, 2), flexible_since=2)
class DeleteGroupsRequest:
    groups_names: list[str] = wire(array(STRING))


@part
class DeletableGroupResult:
    group_id: str = wire(STRING)
    error_code: int = wire(INT16)


@message(versions=(0, 2), flexible_since=2)
class DeleteGroupsResponse:
    throttle_time_ms: int = wire(INT32)
    results: list[DeletableGroupResult] = wire(array(DeletableGroupResult))
