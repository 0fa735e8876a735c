"""The configurations of groups: one key per group that has any, `/configs/groups/<id>`, with its overrides as text.

A group need not exist to be configured. Its id may be any text, so it is escaped as in an address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from headrace.registry.identity import CONFIGS_KEY, decode_configs
from headrace.registry.interface import BadVersion, Create, Delete, KeyExists, NoKey, Registry, RegistryOperation, Set

GROUP_CONFIGS_KEY = f"{CONFIGS_KEY}/groups"


async def change_configs(
    registry: Registry, key: str, change: Callable[[Mapping[str, str] | None], Mapping[str, str] | None]
) -> None:
    """Replace a record of overrides by what `change` returns for it; None is a record that does not exist. `change` is
    called again when another writer was faster."""
    while True:
        entry = await registry.get(key)
        overrides = change(None if entry is None else decode_configs(entry))
        operation: RegistryOperation
        if overrides is None:
            if entry is None:
                return
            operation = Delete(key, entry.version)
        else:
            value = msgspec.json.encode(dict(overrides))
            operation = Create(key, value) if entry is None else Set(key, value, entry.version)
        try:
            await registry.commit([operation])
        except (BadVersion, KeyExists, NoKey):
            continue
        return


def group_config_key(group_id: str) -> str:
    from urllib.parse import quote  # few groups are configured, and no start needs it for the others

    return f"{GROUP_CONFIGS_KEY}/{quote(group_id, safe='').replace('.', '%2E')}"


def group_of_key(key: str) -> str:
    from urllib.parse import unquote

    return unquote(key[len(GROUP_CONFIGS_KEY) + 1 :])
