"""SASL, ACL, quota and SCRAM requests: the Kafka listener has no authentication, and responds with the proper errors.

A request that is not served ends its connection. A client that was set up for SASL would then dial for ever without
learning why, and tools that do not look at ApiVersions first would report a broken network. What is asked for is told
truthfully: there are no rules, no quotas, no passwords. What would change them is refused, as by a Kafka without them.
"""

from __future__ import annotations

from headrace.broker.context import RequestContext
from headrace.broker.handlers import Handle
from headrace.model.errors import HeadraceError, InvalidRequest
from headrace.model.security_errors import IllegalSaslState, ResourceNotFound, SecurityDisabled
from headrace.wire import apis
from headrace.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryResult,
)
from headrace.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from headrace.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from headrace.wire.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from headrace.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from headrace.wire.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from headrace.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from headrace.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

_NO_RULES = SecurityDisabled("Authorization is disabled on this listener; every client has full access")
_NO_PASSWORDS = SecurityDisabled("Authentication is disabled on this listener; it has no users and passwords")
_NO_QUOTAS = InvalidRequest("client quotas are not supported; access tokens of the HTTP listener have rate limits")


def security_table() -> dict[int, Handle]:
    return {
        apis.SASL_HANDSHAKE: _shake_hands,
        apis.DESCRIBE_ACLS: _describe_acls,
        apis.CREATE_ACLS: _create_acls,
        apis.DELETE_ACLS: _delete_acls,
        apis.DESCRIBE_CLIENT_QUOTAS: _describe_quotas,
        apis.ALTER_CLIENT_QUOTAS: _alter_quotas,
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS: _describe_passwords,
        apis.ALTER_USER_SCRAM_CREDENTIALS: _alter_passwords,
    }


async def _shake_hands(_request: SaslHandshakeRequest, _context: RequestContext) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=IllegalSaslState.code)


async def _describe_acls(_request: DescribeAclsRequest, _context: RequestContext) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=_NO_RULES.code, error_message=_NO_RULES.message)


async def _create_acls(request: CreateAclsRequest, _context: RequestContext) -> CreateAclsResponse:
    refused = AclCreationResult(error_code=_NO_RULES.code, error_message=_NO_RULES.message)
    return CreateAclsResponse(results=[refused for _ in request.creations])


async def _delete_acls(request: DeleteAclsRequest, _context: RequestContext) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(error_code=_NO_RULES.code, error_message=_NO_RULES.message)
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


async def _describe_passwords(
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


async def _alter_passwords(
    request: AlterUserScramCredentialsRequest, _context: RequestContext
) -> AlterUserScramCredentialsResponse:
    users = dict.fromkeys([*(one.name for one in request.deletions), *(one.name for one in request.upsertions)])
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=user, error_code=_NO_PASSWORDS.code, error_message=_NO_PASSWORDS.message
            )
            for user in users
        ]
    )
