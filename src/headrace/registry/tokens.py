"""Access tokens in the registry: one key per token, `/configs/tokens/<id>`, with a hash of the secret."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.registry.configs import CONFIGS_KEY
from headrace.registry.interface import BadVersion, Create, Delete, NoKey, Registry, RegistryEntry, decode_json

TOKENS_KEY = f"{CONFIGS_KEY}/tokens"


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


async def create_tokens(registry: Registry, records: Sequence[TokenRecord]) -> None:
    """Create all tokens, or none and raise `KeyExists` if one of the ids exists."""
    await registry.commit([Create(token_key(record.id), msgspec.json.encode(record)) for record in records])


async def revoke_token(registry: Registry, token_id: str) -> bool:
    """Return whether the token existed."""
    while True:
        entry = await registry.get(token_key(token_id))
        if entry is None:
            return False
        try:
            await registry.commit([Delete(entry.key, entry.version)])
        except (BadVersion, NoKey):
            continue
        return True


def token_key(token_id: str) -> str:
    return f"{TOKENS_KEY}/{token_id}"


def decode_token(entry: RegistryEntry) -> TokenRecord:
    return decode_json(entry, TokenRecord)
