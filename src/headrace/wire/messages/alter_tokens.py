"""AlterTokens (10010, our own): create and revoke access tokens. To any broker.

Who creates a token makes up its secret and sends the hash of it. All are created, or none.
"""

from __future__ import annotations

from headrace.wire.schema import BYTES, INT16, INT32, INT64, STRING, array, message, part, wire


@part
class NewToken:
    """`expires_ms` and `requests_per_second` are -1 where there is no limit."""

    token_id: str = wire(STRING)
    hash: bytes = wire(BYTES)
    name: str = wire(STRING)
    scopes: list[str] = wire(array(STRING))
    expires_ms: int = wire(INT64, default=-1)
    requests_per_second: int = wire(INT32, default=-1)
    burst: int = wire(INT32, default=1)


@message(versions=(0, 0), flexible_since=0)
class AlterTokensRequest:
    create: list[NewToken] = wire(array(NewToken))
    revoke: list[str] = wire(array(STRING))


@message(versions=(0, 0), flexible_since=0)
class AlterTokensResponse:
    """`revoked` are those of `revoke` that there were."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    revoked: list[str] = wire(array(STRING))
