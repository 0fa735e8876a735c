"""Who this cluster and this start of a broker are, and what was altered about the brokers while they ran."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.model.ids import id_to_text
from headrace.registry.interface import Create, KeyExists, Registry, RegistryDamaged, RegistryEntry, Set
from headrace.runtime.entropy import Entropy

CLUSTER_ID_KEY = "/cluster/id"
CONFIGS_KEY = "/configs"
BROKER_CONFIGS_KEY = f"{CONFIGS_KEY}/brokers"


async def cluster_id(registry: Registry, entropy: Entropy) -> str:
    """The cluster's id, made up by whoever comes first and the same ever after."""
    while True:
        entry = await registry.get(CLUSTER_ID_KEY)
        if entry is not None:
            return entry.value.decode()
        try:
            await registry.commit([Create(CLUSTER_ID_KEY, id_to_text(entropy.uuid()).encode())])
        except KeyExists:
            continue


async def load_broker_configs(registry: Registry) -> dict[str, str]:
    """Broker settings that were altered while a broker ran."""
    return decode_configs(await registry.get(BROKER_CONFIGS_KEY))


def decode_configs(entry: RegistryEntry | None) -> dict[str, str]:
    if entry is None:
        return {}
    try:
        return msgspec.json.decode(entry.value, type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise RegistryDamaged(f"The registry's key {entry.key} cannot be read: {error}") from error


async def store_broker_configs(registry: Registry, dynamic: Mapping[str, str]) -> None:
    """Replace them. Raises `RegistryConflict` when another broker was faster."""
    entry = await registry.get(BROKER_CONFIGS_KEY)
    value = msgspec.json.encode(dict(dynamic))
    await registry.commit(
        [Set(BROKER_CONFIGS_KEY, value, entry.version) if entry else Create(BROKER_CONFIGS_KEY, value)]
    )
