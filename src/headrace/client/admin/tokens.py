"""Manage and check access tokens.

The secret of a token is generated here and is only in the result of `create`: brokers receive its hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.errors import MalformedResponse, raise_for_code
from headrace.model.tokens import SECRET_BYTES, InvalidScope, Scope, hash_secret, parse_scope, write_token
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

_ID_LENGTH = 16


class TokenView(msgspec.Struct, frozen=True):
    """A token without its secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created_ms: int
    expires_ms: int | None
    requests_per_second: int | None
    burst: int


class TokenGrant(msgspec.Struct, frozen=True):
    id: str
    name: str
    scopes: tuple[Scope, ...]
    expires_ms: int | None
    requests_per_second: int | None
    burst: int


class TokenAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        expires_ms: int | None = None,
        requests_per_second: int | None = None,
        burst: int | None = None,
    ) -> tuple[str, str]:
        """Create a token; returns its id and the token itself, which cannot be read again. Raises `InvalidScope`."""
        entropy = self._cluster.entropy
        token_id, secret = entropy.uuid().hex[:_ID_LENGTH], entropy.token(SECRET_BYTES)
        new = NewToken(
            token_id=token_id,
            hash=hash_secret(secret),
            name=name,
            scopes=[str(parse_scope(scope)) for scope in scopes],
            expires_ms=-1 if expires_ms is None else expires_ms,
            requests_per_second=-1 if requests_per_second is None else requests_per_second,
            burst=burst or requests_per_second or 1,
        )
        await self._cluster.call_until_success(AlterTokensRequest(create=[new]))
        return token_id, write_token(token_id, secret)

    async def revoke(self, token_ids: Sequence[str]) -> Sequence[str]:
        """Revoke tokens; returns the ids of those that existed."""
        request = AlterTokensRequest(revoke=[*token_ids])
        response: AlterTokensResponse = await self._cluster.call_until_success(request)
        return response.revoked

    async def list(self) -> Sequence[TokenView]:
        response: ListTokensResponse = await self._cluster.call_until_success(ListTokensRequest())
        found = [_token_view(token) for token in response.tokens]
        return sorted(found, key=lambda token: (token.created_ms, token.id))


async def check_tokens(cluster: Cluster, presented: Sequence[tuple[str, bytes]]) -> list[TokenGrant | None]:
    """The grants of these ids and hashes; None for a token that does not exist. One attempt."""
    request = CheckTokenRequest(tokens=[PresentedToken(token_id=one, hash=digest) for one, digest in presented])
    response: CheckTokenResponse = await cluster.call(request)
    raise_for_code(response.error_code, response.error_message)
    if len(response.tokens) != len(presented):
        raise MalformedResponse(f"{len(presented)} tokens were to be checked, and {len(response.tokens)} were")
    return [_token_grant(token) if token.is_known else None for token in response.tokens]


def _token_view(token: ListedToken) -> TokenView:
    expires_ms, rate = _limit(token.expires_ms), _limit(token.requests_per_second)
    return TokenView(token.token_id, token.name, tuple(token.scopes), token.created_ms, expires_ms, rate, token.burst)


def _token_grant(token: CheckedToken) -> TokenGrant:
    expires_ms, rate = _limit(token.expires_ms), _limit(token.requests_per_second)
    scopes = tuple(_known_scopes(token.scopes))
    return TokenGrant(token.token_id, token.name, scopes, expires_ms, rate, token.burst)


def _known_scopes(scopes: Sequence[str]) -> Iterator[Scope]:
    """Skip scopes that only newer brokers know; they allow nothing here."""
    for scope in scopes:
        with suppress(InvalidScope):
            yield parse_scope(scope)


def _limit(value: int) -> int | None:
    return None if value < 0 else value
