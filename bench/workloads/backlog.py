"""The cost of a long backlog: every tenth of many messages stays unsettled, then the server is killed and restarted.

`state` is the additional memory compared with the same server with one message. A restart ends when a message can be
leased.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.failure import BenchFailure
from bench.figures import Metric
from bench.load import QueueLoad, start_rkload
from bench.processes import accepts_connections
from bench.server import Server
from bench.workloads.queue import SIZE
from bench.workloads.workload import Trial, Workload

STATE_MB = Metric("state_mb", "state MB", "lower", 1)
RESTART_S = Metric("restart_s", "restart s", "lower", 2)
_READY_SECONDS_MAX = 120
_POLL_SECONDS = 0.01


class Backlog(Workload):
    name = "queue-backlog"
    fresh = True
    metrics = (
        STATE_MB,
        RESTART_S,
        Metric("rss_mb", "RSS MB after restart", "lower", 0),
        Metric("thin_per_s", "leased, nine of ten acked/s", "higher", 0),
    )
    plotted = (STATE_MB, RESTART_S)

    def __init__(self, *, messages: int, peers: Sequence[str]) -> None:
        self.title = f"{messages:,} messages, every tenth unsettled; then kill -9 and a restart"
        self.peers = peers
        self._messages = messages

    def prepare(self, trial: Trial) -> None:
        trial.server.wait_ready()

    def measure(self, trial: Trial) -> dict[str, float]:
        server, messages = trial.server, trial.scaled(self._messages)
        topic = server.create_topic(1)
        _lease_first(server, topic)
        _restart(server, topic)
        bare_bytes = server.process.rss_bytes()
        start_rkload("produce", server.address, topic, messages, SIZE, 1, {}).result()
        load = QueueLoad("headrace", server.address, topic, SIZE)
        try:
            thinned = load.run_command(f"thin {messages}")
        finally:
            load.close()
        restart_s = _restart(server, topic)
        rss_bytes = server.process.rss_bytes()
        return {
            STATE_MB.key: (rss_bytes - bare_bytes) / 1e6,
            RESTART_S.key: restart_s,
            "rss_mb": rss_bytes / 1e6,
            "thin_per_s": messages / thinned["wall_s"],
        }


def _restart(server: Server, topic: str) -> float:
    """Kill the server and start it again; return the seconds until a message was leased."""
    server.process.kill()
    server.restart()
    deadline = time.monotonic() + _READY_SECONDS_MAX
    while not accepts_connections(server.port):
        server.process.check_alive()
        if time.monotonic() > deadline:
            raise BenchFailure(f"{server.peer.name} did not response within {_READY_SECONDS_MAX} s")
        time.sleep(_POLL_SECONDS)
    _lease_first(server, topic)
    return time.monotonic() - server.process.started_at


def _lease_first(server: Server, topic: str) -> None:
    load = QueueLoad("headrace", server.address, topic, SIZE)
    try:
        load.run_command("join 1 1")
    finally:
        load.close()
