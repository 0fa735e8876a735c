"""ListGroups (16): the groups that this broker coordinates.

v3 is flexible, v4 selects by state, v5 by type.
"""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, STRING, array, message, part, wire


@message(versions=(0, 5), flexible_since=3)
class ListGroupsRequest:
    states_filter: list[str] = wire(array(STRING), since=4)
    types_filter: list[str] = wire(array(STRING), since=5)


@part
class ListedGroup:
    group_id: str = wire(STRING)
    protocol_type: str = wire(STRING)
    group_state: str = wire(STRING, since=4)
    group_type: str = wire(STRING, since=5)


@message(versions=(0, 5), flexible_since=3)
class ListGroupsResponse:
    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    groups: list[ListedGroup] = wire(array(ListedGroup))
