"""Produce as fast as it goes, acks=all, into a new topic of four partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.workloads.workload import (
    FLOW_METRICS,
    FLOW_PLOTTED,
    PARTITIONS,
    Turn,
    Workload,
    charge,
    flow_figures,
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

    def measure(self, turn: Turn) -> dict[str, float]:
        topic = turn.server.create_topic(PARTITIONS)
        records = turn.scaled(self._records)
        cost = charge(turn.server, turn.start_load, "produce", topic, records, self._size, **self._settings)
        turn.server.delete_topic(topic)
        return flow_figures(cost)
