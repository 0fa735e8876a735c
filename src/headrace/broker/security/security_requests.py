"""Requests about users, ACLs and quotas, which the Kafka listener does not have, and the authorized operations.

- Requests that describe them return empty lists or that authorization is disabled; requests that change them fail with
  an error, as in a Kafka cluster without them. Without these handlers the broker would close the connection: a client
  that is configured for SASL would reconnect forever without an error, and tools that do not check ApiVersions first
  would report a network failure.
- Responses contain all operations as authorized. Without them (Kafka's lowest int32) tools report that the broker is
  too old, or fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from headrace.broker.handlers import RequestContext, RequestHandler, report_error
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

R = TypeVar("R")

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT = (
    1 << operation for operation in range(3, 13)
)
_CONFIGS: Final = _DESCRIBE_CONFIGS | _ALTER_CONFIGS

TOPIC_OPERATIONS: Final = _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _CONFIGS
GROUP_OPERATIONS: Final = _READ | _DELETE | _DESCRIBE | _CONFIGS
CLUSTER_OPERATIONS: Final = _CREATE | _ALTER | _DESCRIBE | _CLUSTER_ACTION | _IDEMPOTENT | _CONFIGS


def add_authorized_operations(groups: Iterable[Any]) -> None:
    for group in groups:
        if not group.error_code:
            group.authorized_operations = GROUP_OPERATIONS


_NO_ACLS = SecurityDisabled("Authorization is disabled on this listener; every client has full access")
_NO_SCRAM_CREDENTIALS = SecurityDisabled("Authentication is disabled on this listener; it has no users and passwords")
_NO_QUOTAS = InvalidRequest("client quotas are not supported; access tokens of the HTTP listener have rate limits")


def security_handlers() -> list[RequestHandler[Any, Any]]:
    return [
        RequestHandler(apis.SASL_HANDSHAKE, _sasl_handshake),
        RequestHandler(apis.DESCRIBE_ACLS, _describe_acls),
        RequestHandler(apis.CREATE_ACLS, _create_acls),
        RequestHandler(apis.DELETE_ACLS, _delete_acls),
        RequestHandler(apis.DESCRIBE_CLIENT_QUOTAS, _describe_quotas),
        RequestHandler(apis.ALTER_CLIENT_QUOTAS, _alter_quotas),
        RequestHandler(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, _describe_scram_credentials),
        RequestHandler(apis.ALTER_USER_SCRAM_CREDENTIALS, _alter_scram_credentials),
    ]


async def _sasl_handshake(_request: SaslHandshakeRequest, _context: RequestContext) -> SaslHandshakeResponse:
    raise IllegalSaslState


async def _describe_acls(_request: DescribeAclsRequest, _context: RequestContext) -> DescribeAclsResponse:
    raise SecurityDisabled(_NO_ACLS.message)


async def _create_acls(request: CreateAclsRequest, _context: RequestContext) -> CreateAclsResponse:
    return CreateAclsResponse(results=[_failed(AclCreationResult(), _NO_ACLS) for _ in request.creations])


async def _delete_acls(request: DeleteAclsRequest, _context: RequestContext) -> DeleteAclsResponse:
    return DeleteAclsResponse(filter_results=[_failed(DeleteAclsFilterResult(), _NO_ACLS) for _ in request.filters])


async def _describe_quotas(
    _request: DescribeClientQuotasRequest, _context: RequestContext
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse()


async def _alter_quotas(request: AlterClientQuotasRequest, _context: RequestContext) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[_failed(EntryResult(entity=entry.entity), _NO_QUOTAS) for entry in request.entries]
    )


async def _describe_scram_credentials(
    request: DescribeUserScramCredentialsRequest, _context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    return DescribeUserScramCredentialsResponse(
        results=[
            _failed(
                DescribeUserScramCredentialsResult(user=user.name),
                ResourceNotFound(f"user {user.name} does not exist on this listener"),
            )
            for user in request.users or ()
        ]
    )


async def _alter_scram_credentials(
    request: AlterUserScramCredentialsRequest, _context: RequestContext
) -> AlterUserScramCredentialsResponse:
    users = dict.fromkeys([*(one.name for one in request.deletions), *(one.name for one in request.upsertions)])
    return AlterUserScramCredentialsResponse(
        results=[_failed(AlterUserScramCredentialsResult(user=user), _NO_SCRAM_CREDENTIALS) for user in users]
    )


def _failed(result: R, error: HeadraceError) -> R:
    report_error(result, error)
    return result
