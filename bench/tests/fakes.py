"""A workload and peers without a real server, for tests of the schedule and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.figures import Metric
from bench.peers.peer import Consumes
from bench.processes import Launch
from bench.workloads.workload import Trial, Workload

SPEED = Metric("speed", "MB/s", "higher", 1)


class FakePeer:
    protocol = "redis"  # ready as soon as its port accepts connections
    topic_config: Mapping[str, str] = {}

    def __init__(self, name: str, *, flushes: bool = True, consumes: Consumes = "asks", brokers: int = 1) -> None:
        self.name = name
        self.flushes = flushes
        self.consumes: Consumes = consumes
        self.brokers = brokers

    def missing(self) -> str | None:
        return None

    def fetch(self) -> None:
        """Nothing to download."""

    def version(self) -> str:
        return "1"

    def launch(self, folder: Path, port: int) -> Launch:
        return Launch(["python3", "-m", "http.server", str(port), "--bind", "127.0.0.1"], {"HOME": str(folder)})

    def address(self, port: int) -> str:
        return f"127.0.0.1:{port}"


class FakeWorkload(Workload):
    name = "fake"
    title = "a fake"
    metrics = (SPEED,)
    plotted = (SPEED,)

    def __init__(self, peers: Sequence[str], points: Sequence[int | None] = (None,)) -> None:
        self.peers = peers
        self.points = points
        self.x_title = "things"
        self.trials: list[str] = []

    def measure(self, trial: Trial) -> dict[str, float]:
        self.trials.append(trial.server.peer.name)
        return {SPEED.key: float(len(self.trials))}
