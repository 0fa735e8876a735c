"""The configurations of groups: one key per group that has any, `/configs/groups/<id>`, with its overrides as text.

A group need not exist to be configured. Its id may be any text, so it is escaped as in an address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from headrace.registry.identity import CONFIGS_KEY, decode_configs
from headrace.registry.interface import BadVersion, Create, Delete, KeyExists, NoKey, Operation, Registry, Set

GROUP_CONFIGS_KEY = f"{CONFIGS_KEY}/groups"


async def change_group_configs(
    registry: Registry, group_id: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> None:
    """Replace the overrides by what `change` makes of them; it is asked again when another was faster."""
    key = group_config_key(group_id)
    while True:
        entry = await registry.get(key)
        overrides = dict(change(decode_configs(entry)))
        value = msgspec.json.encode(overrides)
        operation: Operation
        if entry is None:
            if not overrides:
                return
            operation = Create(key, value)
        else:
            operation = Set(key, value, entry.version) if overrides else Delete(key, entry.version)
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
