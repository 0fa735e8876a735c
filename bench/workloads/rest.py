"""HTTP: publish one message or a batch per request, pull and acknowledge, and fan out one topic to many event streams.

Peers use their closest equivalent: RabbitMQ's management plugin can publish (one message per request) and get, but has
no streams. NATS has no HTTP API: its native protocol is used, with as many unconfirmed messages as a batch has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.figures import Metric
from bench.load import QueueLoad, RestLoad
from bench.server import Server
from bench.workloads.workload import CLIENT_CORES, PEAK_RSS_MB, Trial, Workload

SIZE = 200
_QUEUE = "bench"
_ENDLESS = 1_000_000_000
_PUBLISH_SECONDS, _DRAIN_SECONDS = 2.0, 2.0
# The backlog before a pull: a number of batches, or what a slow peer can publish in the time.
_BACKLOG_BATCHES, _BACKLOG_MAX, _FILL_SECONDS_MAX = 60_000, 400_000, 6.0
_FILL_PUBLISHERS, _FILL_BATCH = 8, 100
_WIDE_BATCH, _WIDE_WINDOW = 100, 1000

REQUESTS = Metric("requests_per_s", "requests/s", "higher", 0)
REQUESTS_PER_CPU_S = Metric("requests_per_cpu_s", "requests/CPU s", "higher", 0)
MESSAGES = Metric("messages_per_s", "messages/s", "higher", 0)
MESSAGES_PER_CPU_S = Metric("messages_per_cpu_s", "messages/CPU s", "higher", 0)
P50 = Metric("p50_ms", "p50 ms", "lower", 2)
P99 = Metric("p99_ms", "p99 ms", "lower", 2)


class RestPublish(Workload):
    plotted = (REQUESTS_PER_CPU_S, MESSAGES_PER_CPU_S)

    def __init__(self, *, batch: int, connections: int, peers: Sequence[str]) -> None:
        self.name = "rest-publish" if batch == 1 else f"rest-publish-{batch}"
        what = "one message" if batch == 1 else f"{batch} messages"
        self.title = f"publish {what} of {SIZE} B per request, {connections} connections"
        self.peers = peers
        self.metrics = (
            *((REQUESTS, REQUESTS_PER_CPU_S) if batch == 1 else _BOTH),
            *(P50, P99, PEAK_RSS_MB, CLIENT_CORES),
        )
        self._batch = batch
        self._connections = connections

    def measure(self, trial: Trial) -> dict[str, float]:
        with _empty_queue(trial) as load:
            seconds = _PUBLISH_SECONDS * trial.scale
            command = f"publish {self._connections} {self._batch} {_ENDLESS} {seconds}"
            return _run_measured(trial.server, load, command, self._batch)


class RestPull(Workload):
    plotted = (MESSAGES_PER_CPU_S,)
    metrics = (MESSAGES, MESSAGES_PER_CPU_S, P50, P99, PEAK_RSS_MB, CLIENT_CORES)

    def __init__(self, *, batch: int, clients: int, peers: Sequence[str]) -> None:
        self.name = f"rest-pull-ack-{batch}"
        self.title = f"pull and acknowledge {batch} at a time, {clients} clients, {SIZE} B"
        self.peers = peers
        self._batch = batch
        self._clients = clients
        self._backlog = min(_BACKLOG_BATCHES * batch, _BACKLOG_MAX)

    def measure(self, trial: Trial) -> dict[str, float]:
        """p50 and p99 include the pull and its acknowledgement."""
        batch = 1 if trial.server.peer.protocol == "amqp-http" else _FILL_BATCH
        with _empty_queue(trial) as load:
            load.run_command(f"publish {_FILL_PUBLISHERS} {batch} {self._backlog} {_FILL_SECONDS_MAX}")
            load.run_command(f"join {self._clients} {self._batch}")
            return _run_measured(trial.server, load, f"drain {_DRAIN_SECONDS * trial.scale}", self._batch)


class RestStream(Workload):
    """For latency, one message at a time, which all streams settle before the next; for throughput, many at a time."""

    plotted = (MESSAGES_PER_CPU_S, P99)
    metrics = (
        MESSAGES,
        MESSAGES_PER_CPU_S,
        P50,
        P99,
        Metric("single_per_s", "deliveries/s, one at a time", "higher", 0),
        Metric("single_per_cpu_s", "deliveries/CPU s, one at a time", "higher", 0),
        Metric("single_p50_ms", "p50 ms, one at a time", "lower", 2),
        Metric("single_p99_ms", "p99 ms, one at a time", "lower", 2),
        PEAK_RSS_MB,
        CLIENT_CORES,
    )

    def __init__(self, *, streams: int, peers: Sequence[str]) -> None:
        self.name = "rest-sse"
        self.title = f"one topic to {streams} streams of events, each with its own subscription, settling, {SIZE} B"
        self.peers = peers
        self._streams = streams

    def measure(self, trial: Trial) -> dict[str, float]:
        seconds = _PUBLISH_SECONDS * trial.scale
        with _empty_queue(trial) as load:
            single = _run_measured(trial.server, load, f"fanout {self._streams} 1 1 {seconds}", 1)
        with _empty_queue(trial) as load:
            wide = _run_measured(
                trial.server, load, f"fanout {self._streams} {_WIDE_BATCH} {_WIDE_WINDOW} {seconds}", 1
            )
        return wide | {
            "single_per_s": single[MESSAGES.key],
            "single_per_cpu_s": single[MESSAGES_PER_CPU_S.key],
            "single_p50_ms": single[P50.key],
            "single_p99_ms": single[P99.key],
        }


_BOTH = (REQUESTS, REQUESTS_PER_CPU_S, MESSAGES, MESSAGES_PER_CPU_S)


@contextmanager
def _empty_queue(trial: Trial) -> Iterator[QueueLoad | RestLoad]:
    os.sync()
    trial.server.process.reset_peak_rss()
    peer = trial.server.peer
    kind = QueueLoad if peer.protocol == "nats" else RestLoad
    load = kind(peer.protocol, trial.server.address, _QUEUE, SIZE)
    try:
        yield load
    finally:
        load.close()


def _run_measured(server: Server, load: QueueLoad | RestLoad, command: str, batch: int) -> dict[str, float]:
    before = server.process.cpu_seconds()
    measured = load.run_command(command)
    cpu_s = server.process.cpu_seconds() - before
    server.process.check_alive()
    messages, wall_s = measured["messages"], measured["wall_s"]
    return {
        REQUESTS.key: messages / batch / wall_s,
        REQUESTS_PER_CPU_S.key: messages / batch / cpu_s,
        MESSAGES.key: messages / wall_s,
        MESSAGES_PER_CPU_S.key: messages / cpu_s,
        P50.key: measured["p50_us"] / 1000,
        P99.key: measured["p99_us"] / 1000,
        PEAK_RSS_MB.key: server.process.peak_rss_bytes() / 1e6,
        CLIENT_CORES.key: measured["client_cpu_s"] / wall_s,
    }
