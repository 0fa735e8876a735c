"""Folders disappear while a broker is down: that of one log, those of all logs, or the whole data folder.

- Decision 012: before it registers, the broker removes itself from the in-sync sets of the lost replicas. It is never
  elected with an empty log, and replicates everything again.
- No acknowledged record is lost, and a missing folder is never taken for an empty topic.
"""

from __future__ import annotations

from tests.simulation.features.feature import Fault
from tests.simulation.features.storage_faults import WEIGHT, DamagingFeature

from headrace.testkit.broker import DATA, SimBroker

LOGS = f"{DATA}/logs"


class LostFolders(DamagingFeature):
    topic = "losing"

    def faults(self) -> list[Fault]:
        lose_log, lose_everything = map(self.one_at_a_time, (self._lose_log, self._lose_everything))
        return [*[lose_log] * WEIGHT, *[lose_everything] * (WEIGHT // 2)]

    async def _lose_log(self) -> None:
        victim = self.choose_victim()
        if victim is None:
            return
        broker, folder = victim.broker, victim.partition.log.folder
        if await self.shut_down(broker) and broker.host.disk.exists(folder):
            broker.lose_log(folder)
        await self.start_again(broker)

    async def _lose_everything(self) -> None:
        """Remove the data folder of one broker, while every partition has another complete replica."""
        cluster = self.scenario.cluster
        if not all(feature.may_replace_disk for feature in self.scenario.features) or cluster.unhealthy_partitions():
            return
        broker = self.random.choice(list(cluster.brokers.values()))
        if self.random.random() < 0.5:
            if await self.shut_down(broker):
                self._lose_all_logs(broker)
        else:
            broker.cut_power(silently=self.random.random() < 0.3)
            broker.host.disk.lose(DATA)
        await self.start_again(broker)

    def _lose_all_logs(self, broker: SimBroker) -> None:
        """Remove all logs; the files of the data folder itself stay."""
        for name in broker.host.disk.list(LOGS):
            broker.lose_log(f"{LOGS}/{name}")
