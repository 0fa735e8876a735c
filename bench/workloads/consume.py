"""Consume a topic from its beginning, out of the page cache, partitions assigned by hand."""

from __future__ import annotations

from collections.abc import Sequence

from bench.server import Server
from bench.workloads.workload import (
    FLOW_METRICS,
    FLOW_PLOTTED,
    PARTITIONS,
    Turn,
    Workload,
    charge,
    flow_figures,
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

    def prepare(self, turn: Turn) -> None:
        topic = self._topics[turn.server] = turn.server.create_topic(PARTITIONS)
        turn.start_load("produce", topic, turn.scaled(self._records), self._size).result()

    def measure(self, turn: Turn) -> dict[str, float]:
        topic, records = self._topics[turn.server], turn.scaled(self._records)
        return flow_figures(charge(turn.server, turn.start_load, "consume", topic, records, self._size))
