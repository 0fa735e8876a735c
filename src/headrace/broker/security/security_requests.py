"""Requests about users, ACLs and quotas, and the operations that clients may carry out.

A request that is not served ends its connection. A client that was set up for SASL would then dial for ever without
learning why, and tools that do not look at ApiVersions first would report a broken network. What is asked for is told
truthfully: there are no rules, no quotas, no passwords. What would change them is refused, as by a Kafka without
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from headrace.broker.handlers import HandlerFunction, RequestContext
from headrace.model.errors import HeadraceError, IllegalSaslState, InvalidRequest, ResourceNotFound, SecurityDisabled
from headrace.wire import apis
from headrace.wire.messages.security import (
    AclCreationResult,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    EntryResult,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

# The authorized operations in responses: all operations, since the Kafka listener has no authorization.
#
# A tool that asks and is told nothing (Kafka's lowest int32) believes that the broker is too old to know, or stumbles.


_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT = (
    1 << operation for operation in range(3, 13)
)
_CONFIGS: Final = _DESCRIBE_CONFIGS | _ALTER_CONFIGS

TOPIC_OPERATIONS: Final = _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _CONFIGS
GROUP_OPERATIONS: Final = _READ | _DELETE | _DESCRIBE | _CONFIGS
CLUSTER_OPERATIONS: Final = _CREATE | _ALTER | _DESCRIBE | _CLUSTER_ACTION | _IDEMPOTENT | _CONFIGS


class GroupWithOperations(Protocol):
    error_code: int
    authorized_operations: int


def add_authorized_operations(groups: Iterable[GroupWithOperations]) -> None:
    for group in groups:
        if not group.error_code:
            group.authorized_operations = GROUP_OPERATIONS


_NO_ACLS = SecurityDisabled("Authorization is disabled on this listener; every client has full access")
_NO_SCRAM_CREDENTIALS = SecurityDisabled("Authentication is disabled on this listener; it has no users and passwords")
_NO_QUOTAS = InvalidRequest("client quotas are not supported; access tokens of the HTTP listener have rate limits")


def security_handlers() -> dict[int, HandlerFunction]:
    return {
        apis.SASL_HANDSHAKE: _sasl_handshake,
        apis.DESCRIBE_ACLS: _describe_acls,
        apis.CREATE_ACLS: _create_acls,
        apis.DELETE_ACLS: _delete_acls,
        apis.DESCRIBE_CLIENT_QUOTAS: _describe_quotas,
        apis.ALTER_CLIENT_QUOTAS: _alter_quotas,
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS: _describe_scram_credentials,
        apis.ALTER_USER_SCRAM_CREDENTIALS: _alter_scram_credentials,
    }


async def _sasl_handshake(_request: SaslHandshakeRequest, _context: RequestContext) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=IllegalSaslState.code)


async def _describe_acls(_request: DescribeAclsRequest, _context: RequestContext) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=_NO_ACLS.code, error_message=_NO_ACLS.message)


async def _create_acls(request: CreateAclsRequest, _context: RequestContext) -> CreateAclsResponse:
    refused = AclCreationResult(error_code=_NO_ACLS.code, error_message=_NO_ACLS.message)
    return CreateAclsResponse(results=[refused for _ in request.creations])


async def _delete_acls(request: DeleteAclsRequest, _context: RequestContext) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(error_code=_NO_ACLS.code, error_message=_NO_ACLS.message)
    return DeleteAclsResponse(filter_results=[refused for _ in request.filters])


async def _describe_quotas(
    _request: DescribeClientQuotasRequest, _context: RequestContext
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse()


async def _alter_quotas(request: AlterClientQuotasRequest, _context: RequestContext) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            EntryResult(error_code=_NO_QUOTAS.code, error_message=_NO_QUOTAS.message, entity=entry.entity)
            for entry in request.entries
        ]
    )


async def _describe_scram_credentials(
    request: DescribeUserScramCredentialsRequest, _context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    return DescribeUserScramCredentialsResponse(
        results=[
            _described(user.name, ResourceNotFound(f"user {user.name} does not exist on this listener"))
            for user in request.users or ()
        ]
    )


def _described(user: str, error: HeadraceError) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(user=user, error_code=error.code, error_message=error.message)


async def _alter_scram_credentials(
    request: AlterUserScramCredentialsRequest, _context: RequestContext
) -> AlterUserScramCredentialsResponse:
    users = dict.fromkeys([*(one.name for one in request.deletions), *(one.name for one in request.upsertions)])
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=user, error_code=_NO_SCRAM_CREDENTIALS.code, error_message=_NO_SCRAM_CREDENTIALS.message
            )
            for user in users
        ]
    )
