"""DeleteAcls (31): away with the rules that match. v2 is flexible; v3 changes no field."""

from __future__ import annotations

from headrace.wire.messages.describe_acls import LITERAL
from headrace.wire.schema import INT8, INT16, INT32, STRING, array, message, part, wire


@part
class DeleteAclsFilter:
    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(STRING, nullable=0, default=None)
    pattern_type_filter: int = wire(INT8, default=LITERAL)
    principal_filter: str | None = wire(STRING, nullable=0, default=None)
    host_filter: str | None = wire(STRING, nullable=0, default=None)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@message(versions=(1, 3), flexible_since=2)
class DeleteAclsRequest:
    filters: list[DeleteAclsFilter] = wire(array(DeleteAclsFilter))


@part
class DeleteAclsMatchingAcl:
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, default=LITERAL)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@part
class DeleteAclsFilterResult:
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    matching_acls: list[DeleteAclsMatchingAcl] = wire(array(DeleteAclsMatchingAcl))


@message(versions=(1, 3), flexible_since=2)
class DeleteAclsResponse:
    throttle_time_ms: int = wire(INT32)
    filter_results: list[DeleteAclsFilterResult] = wire(array(DeleteAclsFilterResult))
