"""CreateAcls (30): new rules about who may do what. v2 is flexible; v3 changes no field."""

from __future__ import annotations

from headrace.wire.messages.describe_acls import LITERAL
from headrace.wire.schema import INT8, INT16, INT32, STRING, array, message, part, wire


@part
class AclCreation:
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    resource_pattern_type: int = wire(INT8, default=LITERAL)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@message(versions=(1, 3), flexible_since=2)
class CreateAclsRequest:
    creations: list[AclCreation] = wire(array(AclCreation))


@part
class AclCreationResult:
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


@message(versions=(1, 3), flexible_since=2)
class CreateAclsResponse:
    throttle_time_ms: int = wire(INT32)
    results: list[AclCreationResult] = wire(array(AclCreationResult))
