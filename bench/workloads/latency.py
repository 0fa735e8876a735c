"""End-to-end latency at a fixed rate, open loop: from the intended send time until a consumer has the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.figures import Metric
from bench.workloads.workload import CPU_S_PER_M, PARTITIONS, PEAK_RSS_MB, Trial, Workload, measure_cost

_SIZE = 100


class Latency(Workload):
    metrics = (
        Metric("e2e_p50_ms", "end to end p50 ms", "lower", 3),
        Metric("e2e_p99_ms", "end to end p99 ms", "lower", 3),
        Metric("e2e_p999_ms", "end to end p99.9 ms", "lower", 3),
        Metric("ack_p50_ms", "ack p50 ms", "lower", 3),
        Metric("ack_p99_ms", "ack p99 ms", "lower", 3),
        Metric("kept_up", "kept up (1 = yes)", "higher", 0),
        CPU_S_PER_M,
        PEAK_RSS_MB,
    )
    plotted = metrics[:2]

    def __init__(
        self, name: str, *, seconds: int, settings: Mapping[str, str], peers: Sequence[str], rate: int = 1000
    ) -> None:
        self.name = name
        chosen = "".join(f", {key}={value}" for key, value in settings.items())
        self.title = f"end to end at {rate}/s, {_SIZE} B{chosen}"
        self.peers = peers
        self._records = seconds * rate
        self._settings = {**{f"p.{key}": value for key, value in settings.items()}, "rate": str(rate)}

    def measure(self, trial: Trial) -> dict[str, float]:
        topic = trial.server.create_topic(PARTITIONS)
        records = trial.scaled(self._records)
        cost = measure_cost(trial.server, trial.start_load, "latency", topic, records, _SIZE, **self._settings)
        trial.server.delete_topic(topic)
        end_to_end, acks = cost.load["e2e_us"], cost.load["ack_us"]
        return {
            "e2e_p50_ms": end_to_end["p50"] / 1000,
            "e2e_p99_ms": end_to_end["p99"] / 1000,
            "e2e_p999_ms": end_to_end["p999"] / 1000,
            "ack_p50_ms": acks["p50"] / 1000,
            "ack_p99_ms": acks["p99"] / 1000,
            "kept_up": cost.load["steady"],
            CPU_S_PER_M.key: cost.cpu_s / (cost.load["records"] / 1e6),
            PEAK_RSS_MB.key: cost.peak_rss_mb,
        }
