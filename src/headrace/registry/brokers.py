"""The cluster in the registry: its id, its live brokers, its controller, and the brokers that are drained.

/cluster/id                 the id of the cluster
/live/<node id>             a live broker, ephemeral
/brokers/<node id>/epoch    the number of starts of a broker
/controller                 the controller, ephemeral
/controller-epoch           the number of elections of a controller
/drained/<node id>          a broker that is to hold no replicas
"""

from __future__ import annotations

from headrace.model.ids import id_to_text
from headrace.registry.interface import Create, Delete, KeyExists, NoKey, Registry, RegistryDamaged, RegistryEntry, Set
from headrace.runtime.entropy import Entropy

CLUSTER_ID_KEY = "/cluster/id"
BROKERS_KEY = "/brokers"
LIVE_KEY = "/live"
DRAINED_KEY = "/drained"
CONTROLLER_KEY = "/controller"
CONTROLLER_EPOCH_KEY = "/controller-epoch"


def live_key(node_id: int) -> str:
    return f"{LIVE_KEY}/{node_id}"


def drained_key(node_id: int) -> str:
    return f"{DRAINED_KEY}/{node_id}"


def epoch_key(node_id: int) -> str:
    return f"{BROKERS_KEY}/{node_id}/epoch"


def decode_number(entry: RegistryEntry | None) -> int:
    """Return the value of a counter; 0 if the key does not exist yet."""
    if entry is None:
        return 0
    if not entry.value.isdigit():
        raise RegistryDamaged(f"The registry's key {entry.key} is not a number: {entry.value!r}")
    return int(entry.value)


def advance_operation(key: str, entry: RegistryEntry | None, number: int) -> Create | Set:
    """Return the operation that sets a counter, which was read as `entry`, to `number`."""
    value = str(number).encode()
    return Create(key, value) if entry is None else Set(key, value, entry.version)


async def cluster_id(registry: Registry, entropy: Entropy) -> str:
    """Return the id of the cluster; the first broker creates it."""
    while True:
        entry = await registry.get(CLUSTER_ID_KEY)
        if entry is not None:
            return entry.value.decode()
        try:
            await registry.commit([Create(CLUSTER_ID_KEY, id_to_text(entropy.uuid()).encode())])
        except KeyExists:
            continue


async def drain(registry: Registry, node_id: int, *, is_drained: bool) -> None:
    """Mark a broker as drained, or remove the mark. It does nothing if the broker already is in that state."""
    key = drained_key(node_id)
    try:
        if is_drained:
            await registry.commit([Create(key, b"")])
            return
        entry = await registry.get(key)
        if entry is not None:
            await registry.commit([Delete(key, entry.version)])
    except (KeyExists, NoKey):
        return
