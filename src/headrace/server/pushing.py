"""Push in a server process: in a gateway from its start, in a broker from when the first subscription has a webhook.

What does the work is loaded then, and not before: a broker that pushes nothing starts without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.subscription_configs import SubscriptionConfigs
from headrace.runtime.supervise import Supervisor

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster
    from headrace.push.pusher import PushStatus
    from headrace.push.pushers import Pushers


class Pushing:
    """`open_cluster` is called once, when pushing begins."""

    def __init__(self, open_cluster: Callable[[], Cluster], supervisor: Supervisor, *, allows_private: bool) -> None:
        self.pushers: Pushers | None = None
        """Iterates over how each push is doing; None until there is one."""
        self._open_cluster = open_cluster
        self._supervisor = supervisor
        self._allows_private = allows_private
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def watch(self, configs: SubscriptionConfigs) -> None:
        """Begin when a subscription has a webhook. The HTTP listener must be open."""

        def look(_name: str = "") -> None:
            if self.pushers is None and configs.pushes():
                self.start()

        configs.on_changed.append(look)
        look()

    def start(self) -> None:
        from headrace.push.pushers import Pushers
        from headrace.push.sender import open_sender

        if self._is_stopped:
            return
        cluster = self._open_cluster()
        sender = partial(open_sender, cluster.clock, allows_private=self._allows_private)
        self.pushers = Pushers(cluster, sender)
        self._task = self._supervisor.spawn(self.pushers.run(), "push")

    def status(self, topic: str, subscription: str) -> PushStatus | None:
        """How a push is doing in this process; None if there is none."""
        return None if self.pushers is None else self.pushers.status(topic, subscription)

    async def stop(self) -> None:
        """Give back what is in flight; the brokers must still be there."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
