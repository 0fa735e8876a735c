"""Queues: publish with confirms, then lease and acknowledge in batches, with one or many consumers.

Every peer is used through its native protocol, as in its own clients (load/queueload). Headrace is measured in three
configurations, one for each way in which the peers are consumed (`Peer.consumes`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.figures import Metric
from bench.load import QueueLoad
from bench.server import Server
from bench.workloads.workload import CLIENT_CORES, CPU_S_PER_M, PARTITIONS, PEAK_RSS_MB, Trial, Workload

SIZE = 100
# In total over all publishers, when publishing at the maximum rate.
_UNCONFIRMED_MAX = 4000
_STEP_SECONDS, _FILL_SECONDS, _DRAIN_SECONDS = 1.0, 2.0, 2.5
_ENDLESS = 1_000_000_000
# A slow publisher gets more time, so that there are messages to lease.
_BACKLOG_MIN, _REFILL_SECONDS_MAX = 40_000, 8.0

PUBLISHED = Metric("publish_per_s", "published/s", "higher", 0)
SETTLED = Metric("settle_per_s", "leased+acked/s", "higher", 0)
SETTLE_CPU = Metric("settle_cpu_s_per_m", "lease+ack CPU s/M", "lower", 1)
PUBLISH_CPU = Metric("publish_cpu_s_per_m", "publish CPU s/M", "lower", 1)
BOTH_CPU = Metric(CPU_S_PER_M.key, "CPU s/M of both", "lower", 1)


class Queue(Workload):
    metrics = (
        SETTLED,
        Metric("settle_p99_ms", "batch p99 ms", "lower", 2),
        SETTLE_CPU,
        BOTH_CPU,
        PUBLISHED,
        Metric("publish_p99_ms", "confirm p99 ms", "lower", 2),
        PUBLISH_CPU,
        Metric("step_per_s", "published/s in batches", "higher", 0),
        Metric("step_p99_ms", "confirm p99 ms in batches", "lower", 2),
        PEAK_RSS_MB,
        CLIENT_CORES,
    )
    plotted = (SETTLED, BOTH_CPU, PUBLISHED)

    def __init__(self, *, batch: int, consumers: int, peers: Sequence[str]) -> None:
        self.name = f"queue-{batch}" + (f"-by-{consumers}" if consumers > 1 else "")
        consumers_text = "one consumer" if consumers == 1 else f"{consumers} consumers"
        self.title = f"lease and acknowledge {batch} at a time, {consumers_text}, {SIZE} B"
        self.peers = peers
        self._batch = batch
        self._consumers = consumers

    def measure(self, trial: Trial) -> dict[str, float]:
        """Publish batch by batch; then fill another queue at the maximum rate and drain it."""
        server = trial.server
        os.sync()
        server.process.reset_peak_rss()
        with _empty_queue(server) as load:
            step, _ = _run_measured(server, load, self._publish(self._batch, _STEP_SECONDS * trial.scale))
        with _empty_queue(server) as load:
            window = _UNCONFIRMED_MAX // self._consumers
            fill, fill_cpu_s = _run_measured(server, load, self._publish(window, _FILL_SECONDS * trial.scale))
            if (short := _BACKLOG_MIN - fill["messages"]) > 0:
                load.run_command(self._publish(window, _REFILL_SECONDS_MAX, short))
            load.run_command(f"join {self._consumers} {self._batch}")
            drain, drain_cpu_s = _run_measured(server, load, f"drain {_DRAIN_SECONDS * trial.scale}")
        peak_rss_bytes = server.process.peak_rss_bytes()
        settle_cpu_s_per_m = drain_cpu_s / (drain["messages"] / 1e6)
        publish_cpu_s_per_m = fill_cpu_s / (fill["messages"] / 1e6)
        return {
            SETTLED.key: drain["messages"] / drain["wall_s"],
            "settle_p99_ms": drain["p99_us"] / 1000,
            SETTLE_CPU.key: settle_cpu_s_per_m,
            BOTH_CPU.key: publish_cpu_s_per_m + settle_cpu_s_per_m,
            PUBLISHED.key: fill["messages"] / fill["wall_s"],
            "publish_p99_ms": fill["p99_us"] / 1000,
            PUBLISH_CPU.key: publish_cpu_s_per_m,
            "step_per_s": step["messages"] / step["wall_s"],
            "step_p99_ms": step["p99_us"] / 1000,
            PEAK_RSS_MB.key: peak_rss_bytes / 1e6,
            CLIENT_CORES.key: drain["client_cpu_s"] / drain["wall_s"],
        }

    def _publish(self, window: int, seconds: float, count: float = _ENDLESS) -> str:
        return f"publish {self._consumers} {window} {count} {seconds}"


@contextmanager
def _empty_queue(server: Server) -> Iterator[QueueLoad]:
    """Create a load generator on an empty queue; clients of other peers empty a queue of a fixed name."""
    has_topics = server.peer.protocol == "kafka"
    queue = server.create_topic(PARTITIONS) if has_topics else "bench"
    load = QueueLoad(_protocol(server), server.address, queue, SIZE)
    try:
        yield load
    finally:
        load.close()
    if has_topics:
        server.delete_topic(queue)


def _run_measured(server: Server, load: QueueLoad, command: str) -> tuple[dict[str, float], float]:
    """Execute a command; return its measurements and the CPU seconds of the server."""
    before = server.process.cpu_seconds()
    measured = load.run_command(command)
    cpu_s = server.process.cpu_seconds() - before
    server.process.check_alive()
    return measured, cpu_s


def _protocol(server: Server) -> str:
    """Return the protocol of the load generator: queues of Headrace use its own requests."""
    name = server.peer.name.partition("@")[0]
    return name if name.startswith("headrace") else server.peer.protocol
