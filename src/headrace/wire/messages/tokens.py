"""Access tokens: check, create, revoke and list them. These APIs are Headrace's own; any broker responds."""

from __future__ import annotations

from headrace.wire.codec.schema import BOOL, BYTES, INT16, INT32, INT64, STRING, ApiMessage, Part, array, wire

# CheckToken (10009): verify access tokens and return their scopes, in the order of the request. The request has the
# hash of each secret, not the secret.


class PresentedToken(Part):
    token_id: str = wire(STRING)
    hash: bytes = wire(BYTES)


class CheckTokenRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    tokens: list[PresentedToken] = array(PresentedToken)


class CheckedToken(Part):
    """`is_known` means that the token exists and that the secret is correct; otherwise the other fields are empty.
    `expires_ms` and `requests_per_second` are -1 if there is no limit."""

    token_id: str = wire(STRING)
    is_known: bool = wire(BOOL)
    name: str = wire(STRING)
    scopes: list[str] = array(STRING)
    expires_ms: int = wire(INT64, default=-1)
    requests_per_second: int = wire(INT32, default=-1)
    burst: int = wire(INT32, default=1)


class CheckTokenResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    tokens: list[CheckedToken] = array(CheckedToken)


# AlterTokens (10010): create and revoke access tokens. The client generates the secret and sends its hash. Either all
# tokens are created or none.


class NewToken(Part):
    """`expires_ms` and `requests_per_second` are -1 if there is no limit."""

    token_id: str = wire(STRING)
    hash: bytes = wire(BYTES)
    name: str = wire(STRING)
    scopes: list[str] = array(STRING)
    expires_ms: int = wire(INT64, default=-1)
    requests_per_second: int = wire(INT32, default=-1)
    burst: int = wire(INT32, default=1)


class AlterTokensRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    create: list[NewToken] = array(NewToken)
    revoke: list[str] = array(STRING)


class AlterTokensResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    """`revoked` are the ids of `revoke` that existed."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    revoked: list[str] = array(STRING)


# ListTokens (10011): list the access tokens, without their hashes.


class ListTokensRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    pass


class ListedToken(Part):
    """`expires_ms` and `requests_per_second` are -1 if there is no limit."""

    token_id: str = wire(STRING)
    name: str = wire(STRING)
    scopes: list[str] = array(STRING)
    created_ms: int = wire(INT64)
    expires_ms: int = wire(INT64, default=-1)
    requests_per_second: int = wire(INT32, default=-1)
    burst: int = wire(INT32, default=1)


class ListTokensResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    tokens: list[ListedToken] = array(ListedToken)
