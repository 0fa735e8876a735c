"""ListTokens (10011, our own): the access tokens that there are, without what would prove one. To any broker."""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, INT64, STRING, array, message, part, wire


@message(versions=(0, 0), flexible_since=0)
class ListTokensRequest:
    pass


@part
class ListedToken:
    """`expires_ms` and `requests_per_second` are -1 where there is no limit."""

    token_id: str = wire(STRING)
    name: str = wire(STRING)
    scopes: list[str] = wire(array(STRING))
    created_ms: int = wire(INT64)
    expires_ms: int = wire(INT64, default=-1)
    requests_per_second: int = wire(INT32, default=-1)
    burst: int = wire(INT32, default=1)


@message(versions=(0, 0), flexible_since=0)
class ListTokensResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    tokens: list[ListedToken] = wire(array(ListedToken))
