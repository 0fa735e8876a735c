"""Dynamic configurations in the registry: of the brokers, of groups, and of subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

import msgspec

from headrace.model.ids import id_to_text
from headrace.registry.interface import (
    BadVersion,
    Create,
    Delete,
    KeyExists,
    NoKey,
    OutcomeUnknown,
    Registry,
    RegistryDamaged,
    RegistryEntry,
    RegistryOperation,
    Set,
)
from headrace.runtime.entropy import Entropy

# Who this cluster and this start of a broker are, and what was altered about the brokers while they ran.


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


# The configurations of groups: one key per group that has any, `/configs/groups/<id>`, with its overrides as text.
#
# A group need not exist to be configured. Its id may be any text, so it is escaped as in an address.


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


# The configuration of single subscriptions: one key each, `/configs/subscriptions/<topic id>/<name>`.
#
# The key holds the topic's id, not its name: a topic that is deleted and created again has another id, so its
# subscriptions never inherit a record that was written for the earlier topic. The value is a JSON object of overrides as
# text. An empty object differs from a missing key: it is a subscription that has its own configuration and overrides
# nothing.


SUBSCRIPTION_CONFIGS_KEY = f"{CONFIGS_KEY}/subscriptions"


async def remove_subscription_configs(registry: Registry, topic_id: UUID) -> None:
    """Delete every record of a topic that no longer exists. Several brokers may do this at the same time."""
    while True:
        entries = await registry.entries(f"{SUBSCRIPTION_CONFIGS_KEY}/{topic_id.hex}")
        if not entries:
            return
        for entry in entries:
            try:
                await registry.commit([Delete(entry.key, entry.version)])
            except (BadVersion, NoKey, OutcomeUnknown):
                break


def subscription_config_key(topic_id: UUID, name: str) -> str:
    from urllib.parse import quote  # few subscriptions are configured, and no start needs it for the others

    return f"{SUBSCRIPTION_CONFIGS_KEY}/{topic_id.hex}/{quote(name, safe='').replace('.', '%2E')}"


def parse_subscription_config_key(key: str) -> tuple[UUID, str]:
    """The topic's id and the name of the subscription."""
    from urllib.parse import unquote

    topic_id, _, name = key[len(SUBSCRIPTION_CONFIGS_KEY) + 1 :].partition("/")
    return UUID(hex=topic_id), unquote(name)
