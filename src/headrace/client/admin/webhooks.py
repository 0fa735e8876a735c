"""Manage the webhooks of subscriptions, and list them for the process that pushes.

- A webhook is part of the configuration of its subscription, so it belongs to (topic, name) and is deleted with either.
- Setting a webhook again resets its settings to the defaults, except for its secret, which stays unless a new one is
  given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from headrace.client.admin.config_requests import alter_configs, describe_configs, subscription_resource
from headrace.client.cluster import Cluster
from headrace.client.errors import only_result, raise_for_code
from headrace.model.names import ACKS_PREFIX
from headrace.wire.messages.queues import (
    DescribedPush,
    DescribePushesRequest,
    DescribePushesResponse,
    DescribeSubscriptionsRequest,
    DescribeSubscriptionsResponse,
    DescribeSubscriptionsTopic,
)

_DEFAULT_CONFIG = 5
URL, SECRET = "headrace.push.url", "headrace.push.secret"
CONCURRENCY, RATE, TIMEOUT_MS = "headrace.push.concurrency", "headrace.push.rate", "headrace.push.timeout.ms"
_TOPICS = "headrace.push.topics"  # the topics of a group's webhook; empty means all
_NAMES = (URL, SECRET, CONCURRENCY, RATE, TIMEOUT_MS)


class WebhookSettings(msgspec.Struct, frozen=True):
    """The settings of a webhook. None means the default, and for the secret the current one."""

    url: str
    secret: str | None = None
    concurrency: int | None = None
    rate: int | None = None
    timeout_ms: int | None = None


class WebhookView(msgspec.Struct, frozen=True):
    url: str
    has_secret: bool
    concurrency: int
    rate: int
    timeout_ms: int


class WebhookPoller:
    """Polls for webhooks; a broker returns nothing while they have not changed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._version = ""
        self._pushes: Sequence[DescribedPush] = ()

    async def ask(self) -> Sequence[DescribedPush]:
        """One attempt; returns the same object if nothing has changed."""
        response: DescribePushesResponse = await self._cluster.call(DescribePushesRequest(version=self._version))
        raise_for_code(response.error_code, response.error_message)
        if response.is_changed:
            self._version, self._pushes = response.version, response.pushes
        return self._pushes


async def subscribed_topics(cluster: Cluster, subscriptions: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """The topics of each of these subscriptions, one attempt; subscriptions without topics are left out. A subscription
    exists in all partitions of its topic, so the leader of the first one is asked."""
    view = await cluster.refresh()
    by_leader: dict[int, list[DescribeSubscriptionsTopic]] = defaultdict(list)
    for colocated_topic in view.topics:
        topic = colocated_topic.removeprefix(ACKS_PREFIX)
        if topic != colocated_topic and topic in view.topics:
            by_leader[(await cluster.partition(topic, 0)).leader].append(DescribeSubscriptionsTopic(topic, [0]))
    found: dict[str, list[str]] = defaultdict(list)
    for node_id, topics in by_leader.items():
        request = DescribeSubscriptionsRequest(subscriptions=[*subscriptions], topics=topics)
        response: DescribeSubscriptionsResponse = await cluster.call(request, node_id=node_id)
        for topic_result in response.topics:
            partition = only_result(topic_result.partitions)
            raise_for_code(partition.error_code, partition.error_message)
            for described in partition.subscriptions:
                found[described.subscription].append(topic_result.name)
    return {name: sorted(topics) for name, topics in found.items()}


async def set_webhook(cluster: Cluster, topic: str, subscription: str, push: WebhookSettings) -> str | None:
    """Set the webhook of a subscription. Returns the secret if one was generated, because there was none; it cannot be
    read afterwards."""
    generated = None
    if push.secret is None:
        before = await get_webhook(cluster, topic, subscription)
        if before is None or not before.has_secret:
            generated = cluster.entropy.token(32)
    changes: dict[str, str | None] = dict.fromkeys(name for name in _NAMES if name != SECRET)
    changes.update(webhook_configs(push, push.secret or generated))
    await alter_configs(cluster, subscription_resource(topic, subscription), changes)
    return generated


def webhook_configs(push: WebhookSettings, secret: str | None) -> dict[str, str]:
    """The webhook as settings of its subscription, without defaults."""
    given: dict[str, object] = {
        URL: push.url,
        SECRET: secret,
        CONCURRENCY: push.concurrency,
        RATE: push.rate,
        TIMEOUT_MS: push.timeout_ms,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


async def get_webhook(cluster: Cluster, topic: str, subscription: str) -> WebhookView | None:
    described = await describe_configs(cluster, subscription_resource(topic, subscription), [*_NAMES, _TOPICS])
    configs = {one.name: one for one in described}
    url, of_group = configs[URL].value, configs[_TOPICS].value
    if not url or (of_group and topic not in of_group.split(",")):
        return None
    return WebhookView(
        url=url,
        has_secret=configs[SECRET].config_source != _DEFAULT_CONFIG,
        concurrency=int(configs[CONCURRENCY].value or 0),
        rate=int(configs[RATE].value or 0),
        timeout_ms=int(configs[TIMEOUT_MS].value or 0),
    )


async def delete_webhook(cluster: Cluster, topic: str, subscription: str) -> None:
    """Delete the webhook of a subscription together with its secret."""
    await alter_configs(cluster, subscription_resource(topic, subscription), dict.fromkeys(_NAMES))
