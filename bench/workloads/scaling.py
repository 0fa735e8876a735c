"""Does the cost of a request depend on how many connections or partitions there are? It should not.

One request is in flight at a time and goes to the next connection and the next partition, so that no point of
the line is helped by more being handled at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures import Metric
from bench.load import start_reqload
from bench.workloads.workload import PARTITIONS, PEAK_RSS_MB, Turn, Workload, charge

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

    def measure(self, turn: Turn) -> dict[str, float]:
        assert turn.point is not None
        topic = turn.server.create_topic(PARTITIONS)
        figures = _request_figures(turn, topic, connections=turn.point, partitions=PARTITIONS)
        turn.server.delete_topic(topic)
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

    def prepare(self, turn: Turn) -> None:
        turn.server.wait_ready()
        # A new server is cold, Kafka's JIT above all; the line must show partitions, not age.
        topic = turn.server.create_topic(1)
        _request_figures(turn, topic, connections=1, partitions=1)
        turn.server.delete_topic(topic)

    def measure(self, turn: Turn) -> dict[str, float]:
        assert turn.point is not None
        topic = turn.server.create_topic(turn.point)
        return _request_figures(turn, topic, connections=1, partitions=turn.point)


def _request_figures(turn: Turn, topic: str, *, connections: int, partitions: int) -> dict[str, float]:
    requests = turn.scaled(_REQUESTS)
    cost = charge(turn.server, start_reqload, turn.server.port, topic, requests, _SIZE, connections, 1, partitions)
    return {
        "cpu_us_per_request": cost.cpu_s / requests * 1e6,
        "p50_ms": cost.load["p50_us"] / 1000,
        "p99_ms": cost.load["p99_us"] / 1000,
        PEAK_RSS_MB.key: cost.peak_rss_mb,
    }
