"""The access tokens that exist: one key per token, `/configs/tokens/<id>`. The secret is not kept, only its hash."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.registry.configs import CONFIGS_KEY
from headrace.registry.interface import BadVersion, Create, Delete, NoKey, Registry, RegistryDamaged, RegistryEntry

TOKENS_KEY = f"{CONFIGS_KEY}/tokens"


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`requests_per_second` None: as many as it likes. `burst`: how many it may do at once after a pause."""

    id: str
    hash: bytes
    name: str
    scopes: tuple[str, ...]
    created_ms: int
    expires_ms: int | None = None
    requests_per_second: int | None = None
    burst: int = 1


async def create_tokens(registry: Registry, records: Sequence[TokenRecord]) -> None:
    """All or none; raises `KeyExists` when an id is taken."""
    await registry.commit([Create(token_key(record.id), msgspec.json.encode(record)) for record in records])


async def revoke_token(registry: Registry, token_id: str) -> bool:
    """Whether there was one."""
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
    try:
        return msgspec.json.decode(entry.value, type=TokenRecord)
    except msgspec.MsgspecError as error:
        raise RegistryDamaged(f"The registry's key {entry.key} cannot be read: {error}") from error
