"""Resident memory of a new server after five million records."""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures import Metric
from bench.workloads.workload import PARTITIONS, PEAK_RSS_MB, Trial, Workload, measure_cost


class Memory(Workload):
    name = "memory"
    fresh = True
    metrics = (
        Metric("rss_mb", "RSS MB", "lower", 0),
        PEAK_RSS_MB,
        Metric("rss_idle_mb", "RSS MB at start", "lower", 0),
    )
    plotted = metrics[:1]

    def __init__(self, *, records: int, size: int, peers: Sequence[str]) -> None:
        self.title = f"memory after {records:,} records of {size} B"
        self.peers = peers
        self._records = records
        self._size = size

    def prepare(self, trial: Trial) -> None:
        trial.server.wait_ready()

    def measure(self, trial: Trial) -> dict[str, float]:
        process = trial.server.process
        idle = process.rss_bytes()
        topic = trial.server.create_topic(PARTITIONS)
        cost = measure_cost(trial.server, trial.start_load, "produce", topic, trial.scaled(self._records), self._size)
        return {
            "rss_mb": process.rss_bytes() / 1e6,
            PEAK_RSS_MB.key: cost.peak_rss_mb,
            "rss_idle_mb": idle / 1e6,
        }
