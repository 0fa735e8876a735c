"""CheckToken (10009, our own): who presents these access tokens, and what they may do. To any broker.

The hash of the presented secret is sent, not the secret. Answers stand in the order of the question.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, BYTES, INT16, INT32, INT64, STRING, array, message, part, wire


@part
class PresentedToken:
    token_id: str = wire(STRING)
    hash: bytes = wire(BYTES)


@message(versions=(0, 0), flexible_since=0)
class CheckTokenRequest:
    tokens: list[PresentedToken] = wire(array(PresentedToken))


@part
class CheckedToken:
    """`is_known`: there is such a token, and the secret is its own; else the rest is empty. `expires_ms` and
    `requests_per_second` are -1 where there is no limit."""

    token_id: str = wire(STRING)
    is_known: bool = wire(BOOL)
    name: str = wire(STRING)
    scopes: list[str] = wire(array(STRING))
    expires_ms: int = wire(INT64, default=-1)
    requests_per_second: int = wire(INT32, default=-1)
    burst: int = wire(INT32, default=1)


@message(versions=(0, 0), flexible_since=0)
class CheckTokenResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    tokens: list[CheckedToken] = wire(array(CheckedToken))
