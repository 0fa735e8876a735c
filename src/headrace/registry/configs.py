"""Dynamic configurations in the registry, as JSON objects of overrides.

    /configs/brokers                            all brokers
    /configs/groups/<id>                        one group, which need not exist
    /configs/subscriptions/<topic id>/<name>    one subscription

- Names of groups and subscriptions may be any text, so keys contain them percent-encoded. `urllib` is imported only
  when such a key is used, because most clusters have none.
- The key of a subscription contains the topic's id, not its name: a topic that is deleted and created again has another
  id, so its subscriptions never inherit a record that was written for the earlier topic.
- An empty object differs from a missing key: such a subscription has its own configuration and overrides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

import msgspec

from headrace.registry.interface import (
    BadVersion,
    Create,
    Delete,
    KeyExists,
    NoKey,
    Registry,
    RegistryEntry,
    RegistryOperation,
    Set,
    decode_json,
    remove_beneath,
)

CONFIGS_KEY = "/configs"
BROKER_CONFIGS_KEY = f"{CONFIGS_KEY}/brokers"
GROUP_CONFIGS_KEY = f"{CONFIGS_KEY}/groups"
SUBSCRIPTION_CONFIGS_KEY = f"{CONFIGS_KEY}/subscriptions"


async def load_broker_configs(registry: Registry) -> dict[str, str]:
    return decode_configs(await registry.get(BROKER_CONFIGS_KEY))


async def store_broker_configs(registry: Registry, dynamic: Mapping[str, str]) -> None:
    """Replace the overrides of the brokers. Raise `RegistryConflict` if another broker changes them concurrently."""
    entry = await registry.get(BROKER_CONFIGS_KEY)
    await registry.commit([_store_operation(BROKER_CONFIGS_KEY, entry, dynamic)])


def decode_configs(entry: RegistryEntry | None) -> dict[str, str]:
    return {} if entry is None else decode_json(entry, dict[str, str])


async def change_configs(
    registry: Registry, key: str, change: Callable[[Mapping[str, str] | None], Mapping[str, str] | None]
) -> None:
    """Replace the overrides of a key by what `change` returns for them. None stands for a key that does not exist.
    After a concurrent change, `change` is called again."""
    while True:
        entry = await registry.get(key)
        overrides = change(None if entry is None else decode_configs(entry))
        operation: RegistryOperation
        if overrides is not None:
            operation = _store_operation(key, entry, overrides)
        elif entry is not None:
            operation = Delete(key, entry.version)
        else:
            return
        try:
            await registry.commit([operation])
        except (BadVersion, KeyExists, NoKey):
            continue
        return


def _store_operation(key: str, entry: RegistryEntry | None, overrides: Mapping[str, str]) -> Create | Set:
    value = msgspec.json.encode(dict(overrides))
    return Create(key, value) if entry is None else Set(key, value, entry.version)


def group_config_key(group_id: str) -> str:
    return f"{GROUP_CONFIGS_KEY}/{_escape(group_id)}"


def group_of_key(key: str) -> str:
    return _unescape(key[len(GROUP_CONFIGS_KEY) + 1 :])


async def remove_subscription_configs(registry: Registry, topic_id: UUID) -> None:
    """Delete the overrides of all subscriptions of a deleted topic. Several brokers may do this concurrently."""
    # One key per commit: names of subscriptions may be long, and ZooKeeper limits the size of a commit.
    await remove_beneath(registry, f"{SUBSCRIPTION_CONFIGS_KEY}/{topic_id.hex}", keys_per_commit=1)


def subscription_config_key(topic_id: UUID, name: str) -> str:
    return f"{SUBSCRIPTION_CONFIGS_KEY}/{topic_id.hex}/{_escape(name)}"


def parse_subscription_config_key(key: str) -> tuple[UUID, str]:
    """Return the topic id and the name of the subscription."""
    topic_id, _, name = key[len(SUBSCRIPTION_CONFIGS_KEY) + 1 :].partition("/")
    return UUID(hex=topic_id), _unescape(name)


def _escape(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="").replace(".", "%2E")


def _unescape(text: str) -> str:
    from urllib.parse import unquote

    return unquote(text)
