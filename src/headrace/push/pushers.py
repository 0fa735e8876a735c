"""All webhooks of one process: one `WebhookPusher` for each subscription that is to be pushed, as the brokers tell it.

They are asked every second, and say nothing while nothing has changed; the topics of a subscription are looked up every
few seconds. A push that is set anew is stopped, its messages are answered or given back, and it begins again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from typing import Protocol

from headrace.client.admin.webhooks import WebhookPoller, subscribed_topics
from headrace.client.cluster import Cluster
from headrace.model.errors import HeadraceError
from headrace.push.pusher import WebhookPusher, WebhookStatus
from headrace.push.sender import MessageSender
from headrace.wire.messages.queues import DescribedPush

log = logging.getLogger(__name__)

_Key = tuple[str, tuple[str, ...]]
"""Of a webhook: the subscription and the topics that the webhook is for."""

_POLL_SECONDS = 1.0
_TOPICS_SECONDS = 5.0


class ClosableSender(MessageSender, Protocol):
    async def close(self) -> None: ...


class WebhookPushers:
    """Iterates over how they are doing."""

    def __init__(self, cluster: Cluster, open_sender: Callable[[], Awaitable[ClosableSender]]) -> None:
        self._cluster = cluster
        self._open_sender = open_sender
        self._sender: ClosableSender | None = None
        self._poller = WebhookPoller(cluster)
        self._pushers: dict[_Key, WebhookPusher] = {}
        self._last_webhooks: Sequence[DescribedPush] = ()
        self._checked_at: float | None = None

    def __iter__(self) -> Iterator[WebhookStatus]:
        return (pusher.status for pusher in self._pushers.values())

    def status(self, topic: str, subscription: str) -> WebhookStatus | None:
        """None while it is not pushed from here."""
        of_group = self._pushers.get((subscription, ()))
        found = self._pushers.get((subscription, (topic,)), of_group)
        return None if found is None else found.status

    async def run(self) -> None:
        """Until it is cancelled."""
        trouble = ""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    try:
                        await self._update(tasks)
                        trouble = ""
                    except HeadraceError as error:
                        if error.message != trouble:
                            log.warning("which subscriptions are to be pushed is not known: %s", error.message)
                        trouble = error.message
                        self._cluster.invalidate_metadata()
                    await asyncio.sleep(_POLL_SECONDS)
        finally:
            if self._sender is not None:
                await self._sender.close()

    async def _update(self, tasks: asyncio.TaskGroup) -> None:
        told = await self._poller.ask()
        if not told and not self._pushers:
            return
        now = self._cluster.clock.monotonic()
        is_due = self._checked_at is None or now - self._checked_at >= _TOPICS_SECONDS
        if told is self._last_webhooks and not is_due:
            return
        names = {push.subscription for push in told}
        subscribed = await subscribed_topics(self._cluster, sorted(names)) if told else {}
        own = {(push.subscription, topic) for push in told if len(push.topics) == 1 for topic in push.topics}
        wanted = {_key(push): push for push in told if push.url}
        topics = {key: _topics_of(push, subscribed.get(push.subscription, ()), own) for key, push in wanted.items()}
        await self._apply(tasks, wanted, topics)
        self._last_webhooks, self._checked_at = told, now

    async def _apply(
        self, tasks: asyncio.TaskGroup, wanted: Mapping[_Key, DescribedPush], topics: Mapping[_Key, Sequence[str]]
    ) -> None:
        for key, pusher in list(self._pushers.items()):
            if wanted.get(key) != pusher.push or not topics.get(key):
                del self._pushers[key]
                pusher.stop()  # its task ends when the receiver has answered
        for key, push in wanted.items():
            if key in self._pushers:
                self._pushers[key].set_topics(topics[key])
            elif topics.get(key):
                if self._sender is None:
                    self._sender = await self._open_sender()
                pusher = self._pushers[key] = WebhookPusher(push, topics[key], self._cluster, self._sender)
                tasks.create_task(pusher.run())


def _key(push: DescribedPush) -> _Key:
    return push.subscription, tuple(push.topics)


def _topics_of(push: DescribedPush, subscribed: Sequence[str], own: Set[tuple[str, str]]) -> Sequence[str]:
    """A group's webhook is for its topics, except for those whose subscription has a configuration of its own."""
    if len(push.topics) == 1:
        return [topic for topic in subscribed if topic in push.topics]
    return [
        topic
        for topic in subscribed
        if (not push.topics or topic in push.topics) and (push.subscription, topic) not in own
    ]
