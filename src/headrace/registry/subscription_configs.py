"""The configuration of single subscriptions: one key each, `/configs/subscriptions/<topic id>/<name>`.

The key holds the topic's id, not its name: a topic that is deleted and created again has another id, so its
subscriptions never inherit a record that was written for the earlier topic. The value is a JSON object of overrides as
text. An empty object differs from a missing key: it is a subscription that has its own configuration and overrides
nothing.
"""

from __future__ import annotations

from uuid import UUID

from headrace.registry.identity import CONFIGS_KEY
from headrace.registry.interface import BadVersion, Delete, NoKey, OutcomeUnknown, Registry

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
