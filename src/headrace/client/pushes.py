"""Which subscriptions are pushed to webhooks, as whoever pushes asks for it and an administrator sets it.

What a webhook is configured to lies in the configuration of its subscription; one that is set anew begins with the
defaults, but for its secret, which stays until another is named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.errors import only, raise_for
from headrace.model.names import ACKS_PREFIX
from headrace.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from headrace.wire.messages.describe_pushes import DescribedPush, DescribePushesRequest, DescribePushesResponse
from headrace.wire.messages.describe_subscriptions import (
    DescribeSubscriptionsRequest,
    DescribeSubscriptionsResponse,
    DescribeSubscriptionsTopic,
)
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_GROUP_RESOURCE, _SET, _DELETE = 32, 0, 1
_DEFAULT_CONFIG = 5
URL, TOPICS, SECRET = "headrace.push.url", "headrace.push.topics", "headrace.push.secret"
CONCURRENCY, RATE, TIMEOUT_MS = "headrace.push.concurrency", "headrace.push.rate", "headrace.push.timeout.ms"
_NAMES = (URL, TOPICS, SECRET, CONCURRENCY, RATE, TIMEOUT_MS)


class PushSettings(msgspec.Struct, frozen=True):
    """A webhook as it is set: for these topics, or for all. None: what it is by default, or, of the secret, what it has
    been."""

    url: str
    topics: Sequence[str] = ()
    secret: str | None = None
    concurrency: int | None = None
    rate: int | None = None
    timeout_ms: int | None = None


class SetPush(msgspec.Struct, frozen=True):
    """A webhook as it is."""

    url: str
    topics: Sequence[str]
    has_secret: bool
    concurrency: int
    rate: int
    timeout_ms: int


class PushList:
    """What is pushed, asked for again and again; nothing is sent while nothing has changed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._version = ""
        self._pushes: Sequence[DescribedPush] = ()

    async def ask(self) -> Sequence[DescribedPush]:
        """One attempt; the same object if nothing has changed."""
        answer: DescribePushesResponse = await self._cluster.call(DescribePushesRequest(version=self._version))
        raise_for(answer.error_code, answer.error_message)
        if answer.is_changed:
            self._version, self._pushes = answer.version, answer.pushes
        return self._pushes


async def subscribed_topics(cluster: Cluster, subscriptions: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """The topics that each of these subscriptions is in, one attempt; those that are in none are left out. A
    subscription is in all partitions of its topic, so the first one is asked."""
    view = await cluster.refresh()
    by_leader: dict[int, list[DescribeSubscriptionsTopic]] = defaultdict(list)
    for companion in view.topics:
        topic = companion.removeprefix(ACKS_PREFIX)
        if topic != companion and topic in view.topics:
            by_leader[(await cluster.partition(topic, 0)).leader].append(DescribeSubscriptionsTopic(topic, [0]))
    found: dict[str, list[str]] = defaultdict(list)
    for node_id, topics in by_leader.items():
        request = DescribeSubscriptionsRequest(subscriptions=[*subscriptions], topics=topics)
        answer: DescribeSubscriptionsResponse = await cluster.call(request, node_id=node_id)
        for told in answer.topics:
            partition = only(told.partitions)
            raise_for(partition.error_code, partition.error_message)
            for described in partition.subscriptions:
                found[described.subscription].append(told.name)
    return {name: sorted(topics) for name, topics in found.items()}


async def set_push(cluster: Cluster, subscription: str, push: PushSettings) -> str | None:
    """Push the subscription from now on. Returns the secret if one was made up, because there is none: nobody is told
    it again."""
    made = None
    if push.secret is None:
        before = await get_push(cluster, subscription)
        if before is None or not before.has_secret:
            made = cluster.entropy.token(32)
    given: dict[str, object] = {
        URL: push.url,
        TOPICS: ",".join(push.topics) or None,
        SECRET: push.secret if made is None else made,
        CONCURRENCY: push.concurrency,
        RATE: push.rate,
        TIMEOUT_MS: push.timeout_ms,
    }
    changes = [_change(name, value) for name, value in given.items() if value is not None or name != SECRET]
    await _alter(cluster, subscription, changes)
    return made


async def get_push(cluster: Cluster, subscription: str) -> SetPush | None:
    """None if it is not pushed."""
    resource = DescribeConfigsResource(_GROUP_RESOURCE, subscription, [*_NAMES])

    async def ask() -> Mapping[str, tuple[str | None, int]]:
        answer: DescribeConfigsResponse = await cluster.call(DescribeConfigsRequest(resources=[resource]))
        told = only(answer.results)
        raise_for(told.error_code, told.error_message)
        return {config.name: (config.value, config.config_source) for config in told.configs}

    configs = await cluster.persist(ask)
    url, _ = configs[URL]
    if not url:
        return None
    return SetPush(
        url=url,
        topics=tuple((configs[TOPICS][0] or "").split(",")) if configs[TOPICS][0] else (),
        has_secret=configs[SECRET][1] != _DEFAULT_CONFIG,
        concurrency=int(configs[CONCURRENCY][0] or 0),
        rate=int(configs[RATE][0] or 0),
        timeout_ms=int(configs[TIMEOUT_MS][0] or 0),
    )


async def delete_push(cluster: Cluster, subscription: str) -> None:
    """Push it no more; the secret is forgotten, too."""
    await _alter(cluster, subscription, [_change(name, None) for name in _NAMES])


def _change(name: str, value: object) -> AlterableConfig:
    if value is None:
        return AlterableConfig(name=name, config_operation=_DELETE)
    return AlterableConfig(name=name, config_operation=_SET, value=str(value))


async def _alter(cluster: Cluster, subscription: str, changes: Sequence[AlterableConfig]) -> None:
    resource = AlterConfigsResource(_GROUP_RESOURCE, subscription, [*changes])

    async def ask() -> None:
        answer: IncrementalAlterConfigsResponse = await cluster.call(
            IncrementalAlterConfigsRequest(resources=[resource])
        )
        told = only(answer.responses)
        raise_for(told.error_code, told.error_message)

    await cluster.persist(ask)
