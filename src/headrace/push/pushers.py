"""All webhooks of one process: one `Pusher` for each subscription that is to be pushed, as the brokers tell it.

They are asked every second, and say nothing while nothing has changed; the topics of a subscription are looked up every
few seconds. A push that is set anew is stopped, its messages are answered or given back, and it begins again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Protocol

from headrace.client.cluster import Cluster
from headrace.client.pushes import PushList, subscribed_topics
from headrace.model.errors import HeadraceError
from headrace.push.pusher import Pusher, PushStatus
from headrace.push.sender import Sender
from headrace.wire.messages.describe_pushes import DescribedPush

log = logging.getLogger(__name__)

_ASK_SECONDS = 1.0
_TOPICS_SECONDS = 5.0


class ClosingSender(Sender, Protocol):
    async def close(self) -> None: ...


class Pushers:
    """Iterates over how they are doing."""

    def __init__(self, cluster: Cluster, open_sender: Callable[[], Awaitable[ClosingSender]]) -> None:
        self._cluster = cluster
        self._open_sender = open_sender
        self._sender: ClosingSender | None = None
        self._list = PushList(cluster)
        self._pushers: dict[str, Pusher] = {}
        self._told: Sequence[DescribedPush] = ()
        self._looked_at: float | None = None

    def __iter__(self) -> Iterator[PushStatus]:
        return (pusher.status for pusher in self._pushers.values())

    def status(self, subscription: str) -> PushStatus | None:
        """None while it is not pushed from here."""
        found = self._pushers.get(subscription)
        return None if found is None else found.status

    async def run(self) -> None:
        """Until it is cancelled."""
        trouble = ""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    try:
                        await self._look(tasks)
                        trouble = ""
                    except HeadraceError as error:
                        if error.message != trouble:
                            log.warning("which subscriptions are to be pushed is not known: %s", error.message)
                        trouble = error.message
                        self._cluster.distrust()
                    await asyncio.sleep(_ASK_SECONDS)
        finally:
            if self._sender is not None:
                await self._sender.close()

    async def _look(self, tasks: asyncio.TaskGroup) -> None:
        told = await self._list.ask()
        if not told and not self._pushers:
            return
        now = self._cluster.clock.monotonic()
        is_due = self._looked_at is None or now - self._looked_at >= _TOPICS_SECONDS
        if told is self._told and not is_due:
            return
        subscribed = await subscribed_topics(self._cluster, [push.subscription for push in told]) if told else {}
        topics = {push.subscription: _topics_of(push, subscribed.get(push.subscription, ())) for push in told}
        await self._take_over(tasks, {push.subscription: push for push in told}, topics)
        self._told, self._looked_at = told, now

    async def _take_over(
        self, tasks: asyncio.TaskGroup, wanted: Mapping[str, DescribedPush], topics: Mapping[str, Sequence[str]]
    ) -> None:
        for name, pusher in list(self._pushers.items()):
            if wanted.get(name) != pusher.push or not topics.get(name):
                del self._pushers[name]
                pusher.stop()  # its task ends when the receiver has answered
        for name, push in wanted.items():
            if name in self._pushers:
                self._pushers[name].retopic(topics[name])
            elif topics.get(name):
                if self._sender is None:
                    self._sender = await self._open_sender()
                pusher = self._pushers[name] = Pusher(push, topics[name], self._cluster, self._sender)
                tasks.create_task(pusher.run())


def _topics_of(push: DescribedPush, subscribed: Sequence[str]) -> Sequence[str]:
    return [topic for topic in subscribed if not push.topics or topic in push.topics]
