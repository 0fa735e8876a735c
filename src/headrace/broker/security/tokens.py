"""CheckToken, AlterTokens and ListTokens: access tokens, read from the mirror of the registry.

- The registry has one key per token, `/configs/tokens/<id>`, with a hash of the secret.
- A change is effective on this broker when the request returns, and on other brokers when their mirrors follow.
- The client checks whether a token has expired, because it caches the response.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.broker.handlers import ReportErrors, RequestContext, RequestHandler
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import InvalidRequest
from headrace.model.tokens import is_token_id, parse_scope
from headrace.registry.configs import CONFIGS_KEY
from headrace.registry.interface import (
    BadVersion,
    Create,
    Delete,
    KeyExists,
    NoKey,
    Registry,
    RegistryEntry,
    decode_json,
)
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

TOKENS_KEY = f"{CONFIGS_KEY}/tokens"
_HASH_BYTES = 32
_NAME_LENGTH_MAX = 100
_SCOPES_MAX = 64
_TOKENS_MAX = 10_000
_NO_HASH = bytes(_HASH_BYTES)


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`requests_per_second` limits the request rate; None: no limit. `burst` is the number of requests that may follow
    a pause at once."""

    id: str
    hash: bytes
    name: str
    scopes: tuple[str, ...]
    created_ms: int
    expires_ms: int | None = None
    requests_per_second: int | None = None
    burst: int = 1


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
                if is_token_id(token_id) and await self._revoke(token_id):
                    response.revoked.append(token_id)
            ids = [*(token.token_id for token in request.create), *response.revoked]
            await self._catalogue.mirror.read([token_key(token_id) for token_id in ids])
        return response

    async def list(self, _request: ListTokensRequest, _context: RequestContext) -> ListTokensResponse:
        entries = self._catalogue.mirror.entries_beneath(TOKENS_KEY)
        return ListTokensResponse(
            tokens=[
                ListedToken(
                    token_id=record.id,
                    name=record.name,
                    scopes=[*record.scopes],
                    created_ms=record.created_ms,
                    expires_ms=_or_minus_one(record.expires_ms),
                    requests_per_second=_or_minus_one(record.requests_per_second),
                    burst=record.burst,
                )
                for record in map(decode_token, entries)
            ]
        )

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
            await self._registry.commit(
                [Create(token_key(record.id), msgspec.json.encode(record)) for record in records]
            )
        except KeyExists:
            for record in records:
                entry = await self._registry.get(token_key(record.id))
                # A token with the same hash was created by this request, which the client has sent again.
                if entry is None or decode_token(entry).hash != record.hash:
                    raise InvalidRequest(f"token {record.id} already exists") from None

    async def _revoke(self, token_id: str) -> bool:
        """Return whether the token existed."""
        while (entry := await self._registry.get(token_key(token_id))) is not None:
            try:
                await self._registry.commit([Delete(entry.key, entry.version)])
            except (BadVersion, NoKey):
                continue
            return True
        return False


def token_key(token_id: str) -> str:
    return f"{TOKENS_KEY}/{token_id}"


def decode_token(entry: RegistryEntry) -> TokenRecord:
    return decode_json(entry, TokenRecord)


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


def _or_minus_one(value: int | None) -> int:
    return -1 if value is None else value
