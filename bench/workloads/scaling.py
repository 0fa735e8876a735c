"""The cost of a request by the number of connections or partitions, which should be constant.

One request is in flight at a time and uses the next connection and the next partition, so that no point of the line
benefits from processing several requests at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures import Metric
from bench.load import start_reqload
from bench.workloads.workload import PARTITIONS, PEAK_RSS_MB, Trial, Workload, measure_cost

_SIZE = 100
_REQUESTS = 20_000
_METRICS = (
    Metric("cpu_us_per_request", "server CPU µs/request", "lower", 1),
    Metric("p50_ms", "p50 ms", "lower", 3),
    Metric("p99_ms", "p99 ms", "lower", 3),
    PEAK_RSS_MB,
)


class Connections(Workload):
    name = "connections"
    title = "cost of a produce request by number of connections"
    metrics = _METRICS
    plotted = _METRICS[:1]
    points = (1, 10, 100, 1000)
    x_title = "connections"

    def __init__(self, *, peers: Sequence[str]) -> None:
        self.peers = peers

    def measure(self, trial: Trial) -> dict[str, float]:
        assert trial.point is not None
        topic = trial.server.create_topic(PARTITIONS)
        figures = _request_figures(trial, topic, connections=trial.point, partitions=PARTITIONS)
        trial.server.delete_topic(topic)
        return figures


class Partitions(Workload):
    name = "partitions"
    title = "cost of a produce request by number of partitions"
    fresh = True
    metrics = _METRICS
    plotted = _METRICS[:1]
    points = (1, 10, 100, 1000, 10_000)
    x_title = "partitions"

    def __init__(self, *, peers: Sequence[str]) -> None:
        self.peers = peers

    def prepare(self, trial: Trial) -> None:
        trial.server.wait_ready()
        # Warm up the new server, especially Kafka's JIT: the line must not depend on the age of the server.
        topic = trial.server.create_topic(1)
        _request_figures(trial, topic, connections=1, partitions=1)
        trial.server.delete_topic(topic)

    def measure(self, trial: Trial) -> dict[str, float]:
        assert trial.point is not None
        topic = trial.server.create_topic(trial.point)
        return _request_figures(trial, topic, connections=1, partitions=trial.point)


def _request_figures(trial: Trial, topic: str, *, connections: int, partitions: int) -> dict[str, float]:
    requests = trial.scaled(_REQUESTS)
    server = trial.server
    cost = measure_cost(server, start_reqload, server.port, topic, requests, _SIZE, connections, 1, partitions)
    return {
        "cpu_us_per_request": cost.cpu_s / requests * 1e6,
        "p50_ms": cost.load["p50_us"] / 1000,
        "p99_ms": cost.load["p99_us"] / 1000,
        PEAK_RSS_MB.key: cost.peak_rss_mb,
    }
