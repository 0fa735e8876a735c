"""A lagging registry: slow responses, servers that are behind, watch events of one commit delivered one by one.

Topics are created and deleted meanwhile, and the controller's session expires repeatedly.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.simulation.clients import IMPATIENT, Client
from tests.simulation.features.feature import Fault, Feature

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.model.errors import HeadraceError
from headrace.registry.brokers import CONTROLLER_KEY

DELAYS_SECONDS = ((0.0001, 0.003), (0.001, 0.05), (0.01, 0.2))
TOPICS = 12


class TopicMaker(Client):
    """Creates topics and deletes some of them; each name is used once."""

    settings = IMPATIENT

    async def work(self) -> None:
        admin = TopicAdmin(self.cluster)
        for number in range(TOPICS):
            if self.is_done:
                return
            with suppress(HeadraceError):
                await admin.create(NewTopic(f"brief{number}", self.random.randint(1, 4), 2))
                if self.random.random() < 0.4:
                    await admin.delete(f"brief{number}")
            await self.think(0.3)


class LaggingRegistry(Feature):
    def attach(self) -> None:
        registry = self.scenario.cluster.registry
        registry.delay_seconds = self.random.choice(DELAYS_SECONDS)
        registry.behind_seconds = self.random.choice((0.0, 0.0, 0.1, 0.5))
        registry.split_seconds = self.random.choice((0.0, 0.05, 0.3))
        self.others = [self.scenario.create_client(TopicMaker, "topic-maker")]

    def faults(self) -> list[Fault]:
        return [self._depose_controller]

    async def _depose_controller(self) -> None:
        """Expire the session of the controller, which has no other fault."""
        registry = self.scenario.cluster.registry
        registry.expire_holder(CONTROLLER_KEY)
        await asyncio.sleep(self.random.choice((0.1, 0.3, 1.0)))
