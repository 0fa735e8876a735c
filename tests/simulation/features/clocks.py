"""Wrong clocks: the clocks of brokers and clients differ by minutes or years, and those of brokers jump by hours."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.features.feature import LONG_MAX, Fault, Feature

if TYPE_CHECKING:
    from tests.simulation.cluster_scenario import ClusterScenario

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
BROKER_SKEWS_MS = (0, 0, -5 * MINUTE_MS, 5 * MINUTE_MS, -3 * HOUR_MS, 3 * HOUR_MS)
CLIENT_SKEWS_MS = (0, -3 * HOUR_MS, 3 * HOUR_MS, -72 * HOUR_MS, 72 * HOUR_MS, -9600 * HOUR_MS)
JUMPS_MS = (-5 * HOUR_MS, -HOUR_MS, HOUR_MS, 5 * HOUR_MS)


class Clocks(Feature):
    topic_configs = {"retention.ms": "-1", "message.timestamp.after.max.ms": LONG_MAX}

    def __init__(self, scenario: ClusterScenario) -> None:
        super().__init__(scenario)
        if self.random.random() < 0.5:
            self.settings = {"producer.id.expiration.ms": str(10 * MINUTE_MS)}  # shorter than a jump

    def attach(self) -> None:
        self.keeps_brokers = any(feature.needs_broker_clocks for feature in self.scenario.features)
        if not self.keeps_brokers:
            for broker in self.scenario.cluster.brokers.values():
                broker.host.clock.jump(self.random.choice(BROKER_SKEWS_MS))
        for host in self.scenario.world.hosts.values():
            if not host.name.startswith("broker"):
                host.clock.jump(self.random.choice(CLIENT_SKEWS_MS))

    def faults(self) -> list[Fault]:
        return [] if self.keeps_brokers else [self._jump]

    async def _jump(self) -> None:
        broker = self.random.choice(list(self.scenario.cluster.brokers.values()))
        broker.host.clock.jump(self.random.choice(JUMPS_MS))
        await asyncio.sleep(self.random.choice((0.0, 1.0)))
