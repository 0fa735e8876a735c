"""Produce at the maximum rate with acks=all to a new topic with four partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.workloads.workload import (
    FLOW_METRICS,
    FLOW_PLOTTED,
    PARTITIONS,
    Trial,
    Workload,
    flow_figures,
    measure_cost,
)


class Produce(Workload):
    metrics = FLOW_METRICS
    plotted = FLOW_PLOTTED

    def __init__(
        self, name: str, *, records: int, size: int, settings: Mapping[str, str], peers: Sequence[str]
    ) -> None:
        self.name = name
        self.title = f"produce {size} B" + "".join(f", {key}={value}" for key, value in settings.items())
        self.peers = peers
        self._records = records
        self._size = size
        self._settings = settings

    def measure(self, trial: Trial) -> dict[str, float]:
        topic = trial.server.create_topic(PARTITIONS)
        records = trial.scaled(self._records)
        cost = measure_cost(trial.server, trial.start_load, "produce", topic, records, self._size, **self._settings)
        trial.server.delete_topic(topic)
        return flow_figures(cost)
