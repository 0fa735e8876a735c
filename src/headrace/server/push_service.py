"""Run push in a server process: in a gateway from its start, in a broker as soon as a subscription has a push URL.

The push modules are imported only then, so that they do not slow down the startup of other brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.queues.subscription_configs import SubscriptionConfigs
from headrace.runtime.tasks import Supervisor

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster
    from headrace.push.webhook_pusher import WebhookPushers, WebhookStatus


class PushService:
    """`open_cluster` is called once, when push starts."""

    def __init__(self, open_cluster: Callable[[], Cluster], supervisor: Supervisor, *, allows_private: bool) -> None:
        self.pushers: WebhookPushers | None = None
        """Iterates over the status of each push subscription; None before push starts."""
        self._open_cluster = open_cluster
        self._supervisor = supervisor
        self._allows_private = allows_private
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def watch(self, configs: SubscriptionConfigs) -> None:
        """Start push as soon as a subscription has a push URL. The HTTP listener must be open."""

        def start_if_configured(_name: str = "") -> None:
            if self.pushers is None and configs.pushes():
                self.start()

        configs.on_changed.append(start_if_configured)
        start_if_configured()

    def start(self) -> None:
        from headrace.push.webhook_pusher import WebhookPushers
        from headrace.push.webhook_sender import open_sender

        if self._is_stopped:
            return
        cluster = self._open_cluster()
        sender = partial(open_sender, cluster.clock, allows_private=self._allows_private)
        self.pushers = WebhookPushers(cluster, sender)
        self._task = self._supervisor.spawn(self.pushers.run(), "push")

    def status(self, topic: str, subscription: str) -> WebhookStatus | None:
        """Return the push status of a subscription in this process, or None if it is not pushed."""
        return None if self.pushers is None else self.pushers.status(topic, subscription)

    async def stop(self) -> None:
        """Release the messages in flight, which requires the brokers to be reachable."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
