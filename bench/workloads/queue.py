"""A queue's life: publish with confirms, then lease and acknowledge, by one consumer or by many, a batch at a time.

Every peer is used as its own clients use it, and the load says how (load/queueload); Headrace in three ways, one for
each that the others have (`Peer.consumes`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.figures import Metric
from bench.load import QueueLoad
from bench.server import Server
from bench.workloads.workload import CLIENT_CORES, CPU_S_PER_M, PARTITIONS, PEAK_RSS_MB, Turn, Workload

SIZE = 100
# Of all publishers together, where publishing is to be as fast as it goes.
_UNCONFIRMED_MAX = 4000
_STEP_SECONDS, _FILL_SECONDS, _DRAIN_SECONDS = 1.0, 2.0, 2.5
_ENDLESS = 1_000_000_000
# Who publishes slowly is given more time, or it would have nothing to lease.
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
        Metric("step_per_s", "published/s by batches", "higher", 0),
        Metric("step_p99_ms", "confirm p99 ms then", "lower", 2),
        PEAK_RSS_MB,
        CLIENT_CORES,
    )
    plotted = (SETTLED, BOTH_CPU, PUBLISHED)

    def __init__(self, *, batch: int, consumers: int, peers: Sequence[str]) -> None:
        self.name = f"queue-{batch}" + (f"-by-{consumers}" if consumers > 1 else "")
        who = "one consumer" if consumers == 1 else f"{consumers} consumers"
        self.title = f"lease and acknowledge {batch} at a time, {who}, {SIZE} B"
        self.peers = peers
        self._batch = batch
        self._consumers = consumers

    def measure(self, turn: Turn) -> dict[str, float]:
        """Publishes a batch at a time, as they consume; then fills another queue as fast as it goes and empties it."""
        server = turn.server
        os.sync()
        server.process.forget_peak()
        with _empty_queue(server) as load:
            step, _ = _charged(server, load, self._publish(self._batch, _STEP_SECONDS * turn.scale))
        with _empty_queue(server) as load:
            window = _UNCONFIRMED_MAX // self._consumers
            fill, fill_cpu_s = _charged(server, load, self._publish(window, _FILL_SECONDS * turn.scale))
            if (short := _BACKLOG_MIN - fill["messages"]) > 0:
                load.do(self._publish(window, _REFILL_SECONDS_MAX, short))
            load.do(f"join {self._consumers} {self._batch}")
            drain, drain_cpu_s = _charged(server, load, f"drain {_DRAIN_SECONDS * turn.scale}")
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
    """A load on a queue of its own: the others' clients empty the one that they always use."""
    has_topics = server.peer.protocol == "kafka"
    queue = server.create_topic(PARTITIONS) if has_topics else "bench"
    load = QueueLoad(_protocol(server), server.address, queue, SIZE)
    try:
        yield load
    finally:
        load.close()
    if has_topics:
        server.delete_topic(queue)


def _charged(server: Server, load: QueueLoad, command: str) -> tuple[dict[str, float], float]:
    """What the load measured, and the server's CPU seconds meanwhile."""
    before = server.process.cpu_seconds()
    measured = load.do(command)
    cpu_s = server.process.cpu_seconds() - before
    server.process.check_alive()
    return measured, cpu_s


def _protocol(server: Server) -> str:
    """Headrace speaks Kafka, but its queues have requests of their own."""
    name = server.peer.name.partition("@")[0]
    return name if name.startswith("headrace") else server.peer.protocol
