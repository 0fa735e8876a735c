"""The order of measurements: in rounds, and within a round one trial per peer, A B A B.

- The first round of a workload on warm servers is discarded: it includes JIT compilation and page cache misses.
- A server keeps running from one workload to the next if that needs it; no other servers run.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.failure import BenchFailure
from bench.figures import Sample
from bench.peers.peer import Peer
from bench.server import Server
from bench.workloads.workload import Trial, Workload

Log = Callable[[str], None]


@dataclass(slots=True)
class WorkloadResult:
    """All samples of one workload; `failures` has the reason for each peer that could not be measured."""

    workload: Workload
    samples: list[Sample] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of rounds, the scale of the load, and the folder for the data of servers."""

    rounds: int
    scale: float
    base: Path
    log: Log


def run(workloads: Sequence[Workload], peers: Mapping[str, Peer], plan: Plan) -> Iterator[WorkloadResult]:
    """Run the workloads in order; yield each result when it is complete."""
    servers = _WarmServers(plan)
    with servers.closing():
        for workload in workloads:
            measured_peers = [peer for name, peer in peers.items() if is_measured(workload, name)]
            result = WorkloadResult(workload)
            if workload.fresh:
                servers.stop_except([])
                _run_fresh(result, measured_peers, plan)
            else:
                servers.stop_except(measured_peers)
                _run_warm(result, measured_peers, plan, servers)
            yield result


def is_measured(workload: Workload, name: str) -> bool:
    """Whether a workload measures a peer; another commit of Headrace is measured wherever Headrace is."""
    return name in workload.peers or ("@" in name and name.partition("@")[0] in workload.peers)


class _WarmServers:
    """The servers that keep running between workloads."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._servers: dict[str, Server] = {}

    def server(self, peer: Peer) -> Server:
        if peer.name not in self._servers:
            self._plan.log(f"starting {peer.name}")
            server = self._servers[peer.name] = Server(peer, self._plan.base)
            server.wait_ready()
        return self._servers[peer.name]

    def stop(self, name: str) -> None:
        if name in self._servers:
            self._servers.pop(name).close()

    def stop_except(self, peers: Sequence[Peer]) -> None:
        """Stop all other servers, because idle ones would use CPU time as well."""
        for name in set(self._servers) - {peer.name for peer in peers}:
            self.stop(name)

    @contextmanager
    def closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.stop_except([])


def _run_warm(result: WorkloadResult, peers: Sequence[Peer], plan: Plan, servers: _WarmServers) -> None:
    for peer in peers:
        with _recording_failure(result, peer, plan):
            result.workload.prepare(Trial(servers.server(peer), plan.scale))
    for number in range(plan.rounds + 1):
        for point in result.workload.points:
            for peer in peers:
                if peer.name in result.failures:
                    servers.stop(peer.name)
                    continue
                with _recording_failure(result, peer, plan):
                    _run_trial(result, Trial(servers.server(peer), plan.scale, point), number, plan.log)


def _run_fresh(result: WorkloadResult, peers: Sequence[Peer], plan: Plan) -> None:
    for number in range(1, plan.rounds + 1):
        for point in result.workload.points:
            for peer in peers:
                if peer.name in result.failures:
                    continue
                with _recording_failure(result, peer, plan):
                    server = Server(peer, plan.base)
                    try:
                        trial = Trial(server, plan.scale, point)
                        result.workload.prepare(trial)
                        _run_trial(result, trial, number, plan.log)
                    finally:
                        server.close()


def _run_trial(result: WorkloadResult, trial: Trial, number: int, log: Log) -> None:
    figures = result.workload.measure(trial)
    name = trial.server.peer.name
    point = "" if trial.point is None else f" at {trial.point}"
    shown = ", ".join(f"{m.title} {figures[m.key]:.{m.digits}f}" for m in result.workload.metrics if m.key in figures)
    what = f"round {number}" if number else "warm-up"
    log(f"{result.workload.name}{point}, {what}, {name}: {shown}")
    if number:
        result.samples.append(Sample(name, number, figures, trial.point))


@contextmanager
def _recording_failure(result: WorkloadResult, peer: Peer, plan: Plan) -> Iterator[None]:
    """Record a failure of one peer and continue with the others."""
    try:
        yield
    except (BenchFailure, subprocess.TimeoutExpired) as failure:
        result.failures[peer.name] = str(failure)
        plan.log(f"{result.workload.name}, {peer.name}: FAILED: {failure}")
