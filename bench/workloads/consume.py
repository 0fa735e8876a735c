"""Consume a topic from its start, from the page cache, with manually assigned partitions."""

from __future__ import annotations

from collections.abc import Sequence

from bench.server import Server
from bench.workloads.workload import (
    FLOW_METRICS,
    FLOW_PLOTTED,
    PARTITIONS,
    Trial,
    Workload,
    flow_figures,
    measure_cost,
)


class Consume(Workload):
    metrics = FLOW_METRICS
    plotted = FLOW_PLOTTED

    def __init__(self, name: str, *, records: int, size: int, peers: Sequence[str]) -> None:
        self.name = name
        self.title = f"consume {size} B"
        self.peers = peers
        self._records = records
        self._size = size
        self._topics: dict[Server, str] = {}

    def prepare(self, trial: Trial) -> None:
        topic = self._topics[trial.server] = trial.server.create_topic(PARTITIONS)
        trial.start_load("produce", topic, trial.scaled(self._records), self._size).result()

    def measure(self, trial: Trial) -> dict[str, float]:
        topic, records = self._topics[trial.server], trial.scaled(self._records)
        return flow_figures(measure_cost(trial.server, trial.start_load, "consume", topic, records, self._size))
