"""From the start of the process to its first acknowledged record: on an empty folder, and after kill -9.

The client knocks every ten milliseconds and lets the topic be created by asking for it. What a peer must do
once before its first start (Kafka formats its folder) is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.figures import Metric
from bench.workloads.workload import PARTITIONS, Turn, Workload

_START = Metric("start_s", "start to first ack s", "lower", 3)
_START_CPU = Metric("start_cpu_s", "server CPU s until then", "lower", 2)
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

    def measure(self, turn: Turn) -> dict[str, float]:
        return _first_acknowledgement(turn)


class StartAfterKill(Workload):
    name = "start-after-kill"
    title = "start to first acknowledged record, after kill -9 under load"
    fresh = True
    metrics = (_START, _START_CPU)
    plotted = (_START,)

    def __init__(self, *, peers: Sequence[str]) -> None:
        self.peers = peers

    def prepare(self, turn: Turn) -> None:
        turn.server.wait_ready()

    def measure(self, turn: Turn) -> dict[str, float]:
        topic = turn.server.create_topic(PARTITIONS)
        load = turn.start_load("produce", topic, _ENDLESS, 1024, log_level="0")
        try:
            time.sleep(_LOAD_SECONDS * turn.scale)
            turn.server.process.check_alive()
            turn.server.process.kill()
        finally:
            load.abandon()
        turn.server.restart()
        return _first_acknowledgement(turn)


def _first_acknowledgement(turn: Turn) -> dict[str, float]:
    process = turn.server.process
    answer = turn.start_load("first", "first", 1, 100).result()
    return {_START.key: answer["acked_at"] - process.started_at, _START_CPU.key: process.cpu_seconds()}
