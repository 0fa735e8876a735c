"""Lost responses: a broker executes a request, and the connection breaks before the response is sent."""

from __future__ import annotations

import asyncio

from tests.simulation.features.feature import Fault, Feature

CHANCES = (0.02, 0.1, 0.4)


class LostAnswers(Feature):
    def faults(self) -> list[Fault]:
        return [self._lose_answers]

    async def _lose_answers(self) -> None:
        brokers = list(self.scenario.cluster.brokers.values())
        names = [one.host.name for one in self.random.sample(brokers, self.random.randint(1, len(brokers)))]
        try:
            for name in names:
                self.scenario.world.network.lose_responses(name, self.random.choice(CHANCES))
            await asyncio.sleep(self.random.choice((0.3, 1.0, 3.0)))
        finally:
            for name in names:
                self.scenario.world.network.lose_responses(name, 0.0)
