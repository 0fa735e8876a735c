"""Users, ACLs and quotas."""

from __future__ import annotations

from headrace.wire.codec.schema import BOOL, BYTES, FLOAT64, INT8, INT16, INT32, STRING, ApiMessage, Part, array, wire

# SaslHandshake (17): choose the SASL mechanism. v1 has the same fields as v0, but other requests follow it.


class SaslHandshakeRequest(ApiMessage, versions=(0, 1)):
    mechanism: str = wire(STRING)


class SaslHandshakeResponse(ApiMessage, versions=(0, 1)):
    error_code: int = wire(INT16)
    mechanisms: list[str] = array(STRING)


# DescribeAcls (29): list ACLs. v2 is flexible, v3 changes no field.


LITERAL = 3


class DescribeAclsRequest(ApiMessage, versions=(1, 3), flexible_since=2):
    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(STRING, nullable=0, default=None)
    pattern_type_filter: int = wire(INT8, default=LITERAL)
    principal_filter: str | None = wire(STRING, nullable=0, default=None)
    host_filter: str | None = wire(STRING, nullable=0, default=None)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


class AclDescription(Part):
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


class DescribeAclsResource(Part):
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, default=LITERAL)
    acls: list[AclDescription] = array(AclDescription)


class DescribeAclsResponse(ApiMessage, versions=(1, 3), flexible_since=2):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)


# CreateAcls (30): create ACLs. v2 is flexible, v3 changes no field.


class AclCreation(Part):
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    resource_pattern_type: int = wire(INT8, default=LITERAL)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


class CreateAclsRequest(ApiMessage, versions=(1, 3), flexible_since=2):
    creations: list[AclCreation] = array(AclCreation)


class AclCreationResult(Part):
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


class CreateAclsResponse(ApiMessage, versions=(1, 3), flexible_since=2):
    throttle_time_ms: int = wire(INT32)
    results: list[AclCreationResult] = array(AclCreationResult)


# DeleteAcls (31): delete the ACLs that match. v2 is flexible, v3 changes no field.


class DeleteAclsFilter(Part):
    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(STRING, nullable=0, default=None)
    pattern_type_filter: int = wire(INT8, default=LITERAL)
    principal_filter: str | None = wire(STRING, nullable=0, default=None)
    host_filter: str | None = wire(STRING, nullable=0, default=None)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


class DeleteAclsRequest(ApiMessage, versions=(1, 3), flexible_since=2):
    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


class DeleteAclsMatchingAcl(Part):
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, default=LITERAL)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


class DeleteAclsFilterResult(Part):
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


class DeleteAclsResponse(ApiMessage, versions=(1, 3), flexible_since=2):
    throttle_time_ms: int = wire(INT32)
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)


# DescribeClientQuotas (48): list the quotas of users and clients. v1 is flexible.


class ComponentData(Part):
    entity_type: str = wire(STRING)
    match_type: int = wire(INT8)
    match: str | None = wire(STRING, nullable=0, default=None)


class DescribeClientQuotasRequest(ApiMessage, versions=(0, 1), flexible_since=1):
    components: list[ComponentData] = array(ComponentData)
    strict: bool = wire(BOOL)


class EntityData(Part):
    entity_type: str = wire(STRING)
    entity_name: str | None = wire(STRING, nullable=0, default=None)


class ValueData(Part):
    key: str = wire(STRING)
    value: float = wire(FLOAT64)


class EntryData(Part):
    entity: list[EntityData] = array(EntityData)
    values: list[ValueData] = array(ValueData)


class DescribeClientQuotasResponse(ApiMessage, versions=(0, 1), flexible_since=1):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    entries: list[EntryData] | None = array(EntryData, nullable=0)


# AlterClientQuotas (49): set and remove quotas of users and clients. v1 is flexible.


class OpData(Part):
    key: str = wire(STRING)
    value: float = wire(FLOAT64)
    remove: bool = wire(BOOL)


class AlteredEntry(Part):
    entity: list[EntityData] = array(EntityData)
    ops: list[OpData] = array(OpData)


class AlterClientQuotasRequest(ApiMessage, versions=(0, 1), flexible_since=1):
    entries: list[AlteredEntry] = array(AlteredEntry)
    validate_only: bool = wire(BOOL)


class EntryResult(Part):
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    entity: list[EntityData] = array(EntityData)


class AlterClientQuotasResponse(ApiMessage, versions=(0, 1), flexible_since=1):
    throttle_time_ms: int = wire(INT32)
    entries: list[EntryResult] = array(EntryResult)


# AlterUserScramCredentials (51): set and delete SCRAM credentials of users.


class ScramCredentialDeletion(Part):
    name: str = wire(STRING)
    mechanism: int = wire(INT8)


class ScramCredentialUpsertion(Part):
    name: str = wire(STRING)
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)
    salt: bytes = wire(BYTES)
    salted_password: bytes = wire(BYTES)


class AlterUserScramCredentialsRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


class AlterUserScramCredentialsResult(Part):
    user: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


class AlterUserScramCredentialsResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)


# DescribeUserScramCredentials (50): list the users with SCRAM credentials. Null selects all users.


class UserName(Part):
    name: str = wire(STRING)


class DescribeUserScramCredentialsRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    users: list[UserName] | None = array(UserName, nullable=0)


class CredentialInfo(Part):
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)


class DescribeUserScramCredentialsResult(Part):
    user: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    credential_infos: list[CredentialInfo] = array(CredentialInfo)


class DescribeUserScramCredentialsResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)
