"""Users, ACLs and quotas."""

from __future__ import annotations

from headrace.wire.codec.schema import BOOL, BYTES, FLOAT64, INT8, INT16, INT32, STRING, array, message, part, wire

# SaslHandshake (17): choose the SASL mechanism. v1 has the same fields as v0, but other requests follow it.


@message(versions=(0, 1))
class SaslHandshakeRequest:
    mechanism: str = wire(STRING)


@message(versions=(0, 1))
class SaslHandshakeResponse:
    error_code: int = wire(INT16)
    mechanisms: list[str] = wire(array(STRING))


# DescribeAcls (29): list ACLs. v2 is flexible, v3 changes no field.


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


# CreateAcls (30): create ACLs. v2 is flexible, v3 changes no field.


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


# DeleteAcls (31): delete the ACLs that match. v2 is flexible, v3 changes no field.


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


# DescribeClientQuotas (48): list the quotas of users and clients. v1 is flexible.


@part
class ComponentData:
    entity_type: str = wire(STRING)
    match_type: int = wire(INT8)
    match: str | None = wire(STRING, nullable=0, default=None)


@message(versions=(0, 1), flexible_since=1)
class DescribeClientQuotasRequest:
    components: list[ComponentData] = wire(array(ComponentData))
    strict: bool = wire(BOOL)


@part
class EntityData:
    entity_type: str = wire(STRING)
    entity_name: str | None = wire(STRING, nullable=0, default=None)


@part
class ValueData:
    key: str = wire(STRING)
    value: float = wire(FLOAT64)


@part
class EntryData:
    entity: list[EntityData] = wire(array(EntityData))
    values: list[ValueData] = wire(array(ValueData))


@message(versions=(0, 1), flexible_since=1)
class DescribeClientQuotasResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    entries: list[EntryData] | None = wire(array(EntryData), nullable=0)


# AlterClientQuotas (49): set and remove quotas of users and clients. v1 is flexible.


@part
class OpData:
    key: str = wire(STRING)
    value: float = wire(FLOAT64)
    remove: bool = wire(BOOL)


@part
class AlteredEntry:
    entity: list[EntityData] = wire(array(EntityData))
    ops: list[OpData] = wire(array(OpData))


@message(versions=(0, 1), flexible_since=1)
class AlterClientQuotasRequest:
    entries: list[AlteredEntry] = wire(array(AlteredEntry))
    validate_only: bool = wire(BOOL)


@part
class EntryResult:
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    entity: list[EntityData] = wire(array(EntityData))


@message(versions=(0, 1), flexible_since=1)
class AlterClientQuotasResponse:
    throttle_time_ms: int = wire(INT32)
    entries: list[EntryResult] = wire(array(EntryResult))


# AlterUserScramCredentials (51): set and delete SCRAM credentials of users.


@part
class ScramCredentialDeletion:
    name: str = wire(STRING)
    mechanism: int = wire(INT8)


@part
class ScramCredentialUpsertion:
    name: str = wire(STRING)
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)
    salt: bytes = wire(BYTES)
    salted_password: bytes = wire(BYTES)


@message(versions=(0, 0), flexible_since=0)
class AlterUserScramCredentialsRequest:
    deletions: list[ScramCredentialDeletion] = wire(array(ScramCredentialDeletion))
    upsertions: list[ScramCredentialUpsertion] = wire(array(ScramCredentialUpsertion))


@part
class AlterUserScramCredentialsResult:
    user: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


@message(versions=(0, 0), flexible_since=0)
class AlterUserScramCredentialsResponse:
    throttle_time_ms: int = wire(INT32)
    results: list[AlterUserScramCredentialsResult] = wire(array(AlterUserScramCredentialsResult))


# DescribeUserScramCredentials (50): list the users with SCRAM credentials. Null selects all users.


@part
class UserName:
    name: str = wire(STRING)


@message(versions=(0, 0), flexible_since=0)
class DescribeUserScramCredentialsRequest:
    users: list[UserName] | None = wire(array(UserName), nullable=0)


@part
class CredentialInfo:
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)


@part
class DescribeUserScramCredentialsResult:
    user: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    credential_infos: list[CredentialInfo] = wire(array(CredentialInfo))


@message(versions=(0, 0), flexible_since=0)
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    results: list[DescribeUserScramCredentialsResult] = wire(array(DescribeUserScramCredentialsResult))
