"""Who this cluster and this start of a broker are, and what was altered about the brokers while they ran."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.model.ids import id_to_text
from headrace.registry.counters import advance
from headrace.registry.interface import Create, KeyExists, Registry, RegistryDamaged, Set
from headrace.runtime.entropy import Entropy

CLUSTER_ID_KEY = "/cluster/id"
BROKER_CONFIGS_KEY = "/configs/brokers"


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


async def next_broker_epoch(registry: Registry, node_id: int) -> int:
    """The number of this start of the broker, from 1; what an earlier start left behind has a smaller one."""
    return await advance(registry, f"/brokers/{node_id}/epoch") + 1


async def load_broker_configs(registry: Registry) -> dict[str, str]:
    """Broker settings that were altered while a broker ran."""
    entry = await registry.get(BROKER_CONFIGS_KEY)
    if entry is None:
        return {}
    try:
        return msgspec.json.decode(entry.value, type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise RegistryDamaged(f"The registry's key {BROKER_CONFIGS_KEY} cannot be read: {error}") from error


async def store_broker_configs(registry: Registry, dynamic: Mapping[str, str]) -> None:
    """Replace them. Raises `RegistryConflict` when another broker was faster."""
    entry = await registry.get(BROKER_CONFIGS_KEY)
    value = msgspec.json.encode(dict(dynamic))
    await registry.commit(
        [Set(BROKER_CONFIGS_KEY, value, entry.version) if entry else Create(BROKER_CONFIGS_KEY, value)]
    )
