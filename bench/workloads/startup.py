"""Time from the start of the process to the first acknowledged record: on an empty folder, and after kill -9.

The client tries to connect every 10 ms and requests a topic that is created automatically. The preparation of the
folder (Kafka formats it) is not included.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.figures import Metric
from bench.workloads.workload import PARTITIONS, Trial, Workload

_START = Metric("start_s", "start to first ack s", "lower", 3)
_START_CPU = Metric("start_cpu_s", "server CPU s until first ack", "lower", 2)
_ENDLESS = 1_000_000_000
_LOAD_SECONDS = 10


class StartFresh(Workload):
    name = "start-fresh"
    title = "start to first acknowledged record"
    fresh = True
    metrics = (_START, _START_CPU)
    plotted = (_START,)

    def __init__(self, *, peers: Sequence[str]) -> None:
        self.peers = peers

    def measure(self, trial: Trial) -> dict[str, float]:
        return _first_acknowledgement(trial)


class StartAfterKill(Workload):
    name = "start-after-kill"
    title = "start to first acknowledged record, after kill -9 under load"
    fresh = True
    metrics = (_START, _START_CPU)
    plotted = (_START,)

    def __init__(self, *, peers: Sequence[str]) -> None:
        self.peers = peers

    def prepare(self, trial: Trial) -> None:
        trial.server.wait_ready()

    def measure(self, trial: Trial) -> dict[str, float]:
        topic = trial.server.create_topic(PARTITIONS)
        load = trial.start_load("produce", topic, _ENDLESS, 1024, log_level="0")
        try:
            time.sleep(_LOAD_SECONDS * trial.scale)
            trial.server.process.check_alive()
            trial.server.process.kill()
        finally:
            load.kill()
        trial.server.restart()
        return _first_acknowledgement(trial)


def _first_acknowledgement(trial: Trial) -> dict[str, float]:
    process = trial.server.process
    response = trial.start_load("first", "first", 1, 100).result()
    return {_START.key: response["acked_at"] - process.started_at, _START_CPU.key: process.cpu_seconds()}
