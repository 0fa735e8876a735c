"""DescribeAcls (29): the rules about who may do what. v2 is flexible; v3 changes no field."""

from __future__ import annotations

from headrace.wire.schema import INT8, INT16, INT32, STRING, array, message, part, wire

LITERAL = 3


@message(versions=(1, 3), flexible_since=2)
class DescribeAclsRequest:
    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(STRING, nullable=0, default=None)
    pattern_type_filter: int = wire(INT8, default=LITERAL)
    principal_filter: str | None = wire(STRING, nullable=0, default=None)
    host_filter: str | None = wire(STRING, nullable=0, default=None)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@part
class AclDescription:
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@part
class DescribeAclsResource:
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, default=LITERAL)
    acls: list[AclDescription] = wire(array(AclDescription))


@message(versions=(1, 3), flexible_since=2)
class DescribeAclsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    resources: list[DescribeAclsResource] = wire(array(DescribeAclsResource))
