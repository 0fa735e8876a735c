"""CheckToken, AlterTokens and ListTokens: access tokens, read from the mirror of the registry.

- A change is effective on this broker when the request returns, and on other brokers when their mirrors follow.
- The client checks whether a token has expired, because it caches the response.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.broker.handlers import ReportErrors, RequestContext, RequestHandler
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import InvalidRequest
from headrace.model.tokens import is_token_id, parse_scope
from headrace.registry.interface import KeyExists, Registry
from headrace.registry.tokens import TOKENS_KEY, TokenRecord, create_tokens, decode_token, revoke_token, token_key
from headrace.runtime.clock import Clock
from headrace.wire import apis
from headrace.wire.messages.tokens import (
    AlterTokensRequest,
    AlterTokensResponse,
    CheckedToken,
    CheckTokenRequest,
    CheckTokenResponse,
    ListedToken,
    ListTokensRequest,
    ListTokensResponse,
    NewToken,
    PresentedToken,
)

_HASH_BYTES = 32
_NAME_LENGTH_MAX = 100
_SCOPES_MAX = 64
_TOKENS_MAX = 10_000
_NO_HASH = bytes(_HASH_BYTES)


class TokenRequests:
    def __init__(self, catalogue: Catalogue, registry: Registry, clock: Clock) -> None:
        self._catalogue = catalogue
        self._registry = registry
        self._clock = clock

    def handlers(self) -> list[RequestHandler[Any, Any]]:
        return [
            RequestHandler(apis.CHECK_TOKEN, self.check),
            RequestHandler(apis.ALTER_TOKENS, self.alter),
            RequestHandler(apis.LIST_TOKENS, self.list),
        ]

    async def check(self, request: CheckTokenRequest, _context: RequestContext) -> CheckTokenResponse:
        return CheckTokenResponse(tokens=[self._checked(token) for token in request.tokens])

    async def alter(self, request: AlterTokensRequest, _context: RequestContext) -> AlterTokensResponse:
        response = AlterTokensResponse()
        with ReportErrors(response):
            await self._create([_token_record(token, self._clock.now_ms()) for token in request.create])
            for token_id in request.revoke:
                if is_token_id(token_id) and await revoke_token(self._registry, token_id):
                    response.revoked.append(token_id)
            ids = [*(token.token_id for token in request.create), *response.revoked]
            await self._catalogue.mirror.read([token_key(token_id) for token_id in ids])
        return response

    async def list(self, _request: ListTokensRequest, _context: RequestContext) -> ListTokensResponse:
        entries = self._catalogue.mirror.entries_beneath(TOKENS_KEY)
        return ListTokensResponse(tokens=[_listed(decode_token(entry)) for entry in entries])

    def _checked(self, token: PresentedToken) -> CheckedToken:
        from hmac import compare_digest  # loaded on first use: most brokers never check a token

        entry = self._catalogue.mirror.get(token_key(token.token_id))
        record = None if entry is None else decode_token(entry)
        if not compare_digest(bytes(token.hash), _NO_HASH if record is None else record.hash) or record is None:
            return CheckedToken(token_id=token.token_id)
        return CheckedToken(
            token_id=record.id,
            is_known=True,
            name=record.name,
            scopes=[*record.scopes],
            expires_ms=_or_minus_one(record.expires_ms),
            requests_per_second=_or_minus_one(record.requests_per_second),
            burst=record.burst,
        )

    async def _create(self, records: Sequence[TokenRecord]) -> None:
        if not records:
            return
        if len(self._catalogue.mirror.entries_beneath(TOKENS_KEY)) + len(records) > _TOKENS_MAX:
            raise InvalidRequest(f"the maximum of {_TOKENS_MAX} tokens is reached; revoke some")
        try:
            await create_tokens(self._registry, records)
        except KeyExists:
            for record in records:
                entry = await self._registry.get(token_key(record.id))
                # A token with the same hash was created by this request, which the client has sent again.
                if entry is None or decode_token(entry).hash != record.hash:
                    raise InvalidRequest(f"token {record.id} already exists") from None


def _token_record(token: NewToken, now_ms: int) -> TokenRecord:
    """Return the record of a valid token, or raise `InvalidRequest`."""
    if not is_token_id(token.token_id) or len(token.hash) != _HASH_BYTES:
        raise InvalidRequest("a token must have an id of letters and digits, and a SHA-256 hash of its secret")
    if not token.name or len(token.name) > _NAME_LENGTH_MAX or not token.name.isprintable():
        raise InvalidRequest(f"the name of a token must have 1 to {_NAME_LENGTH_MAX} printable characters")
    if not 0 < len(token.scopes) <= _SCOPES_MAX:
        raise InvalidRequest(f"a token must have 1 to {_SCOPES_MAX} scopes, such as publish:orders")
    if token.requests_per_second == 0 or token.burst < 1:
        raise InvalidRequest("rate and burst of a token must be at least 1")
    return TokenRecord(
        id=token.token_id,
        hash=bytes(token.hash),
        name=token.name,
        scopes=tuple(str(parse_scope(scope)) for scope in token.scopes),
        created_ms=now_ms,
        expires_ms=None if token.expires_ms < 0 else token.expires_ms,
        requests_per_second=None if token.requests_per_second < 0 else token.requests_per_second,
        burst=token.burst,
    )


def _listed(record: TokenRecord) -> ListedToken:
    return ListedToken(
        token_id=record.id,
        name=record.name,
        scopes=[*record.scopes],
        created_ms=record.created_ms,
        expires_ms=_or_minus_one(record.expires_ms),
        requests_per_second=_or_minus_one(record.requests_per_second),
        burst=record.burst,
    )


def _or_minus_one(value: int | None) -> int:
    return -1 if value is None else value
