"""Who is measured when: round by round, and within a round the peers in turn, A B A B.

The first round of a workload on warm servers is thrown away: it pays for the JIT and for the first touch of
the page cache. Servers live on from workload to workload while the next one needs them, and no others run.
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
from bench.workloads.workload import Turn, Workload

Say = Callable[[str], None]


@dataclass(slots=True)
class Outcome:
    """All samples of one workload; `failures` says for each peer that could not be measured why."""

    workload: Workload
    samples: list[Sample] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """How often and how much; the data folders lie under `base`."""

    rounds: int
    scale: float
    base: Path
    say: Say


def run(workloads: Sequence[Workload], peers: Mapping[str, Peer], plan: Plan) -> Iterator[Outcome]:
    """Run the workloads in order; each gives its outcome as soon as it is done."""
    fleet = _Fleet(plan)
    with fleet.closing():
        for workload in workloads:
            taking_part = [peer for name, peer in peers.items() if takes_part(workload, name)]
            outcome = Outcome(workload)
            if workload.fresh:
                fleet.keep([])
                _run_fresh(outcome, taking_part, plan)
            else:
                fleet.keep(taking_part)
                _run_warm(outcome, taking_part, plan, fleet)
            yield outcome


def takes_part(workload: Workload, name: str) -> bool:
    """Another commit of Headrace takes part wherever Headrace does."""
    return name in workload.peers or ("@" in name and name.partition("@")[0] in workload.peers)


class _Fleet:
    """The warm servers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._servers: dict[str, Server] = {}

    def server(self, peer: Peer) -> Server:
        if peer.name not in self._servers:
            self._plan.say(f"starting {peer.name}")
            server = self._servers[peer.name] = Server(peer, self._plan.base)
            server.wait_ready()
        return self._servers[peer.name]

    def drop(self, name: str) -> None:
        if name in self._servers:
            self._servers.pop(name).close()

    def keep(self, peers: Sequence[Peer]) -> None:
        """An idle server is not free of charge; those that are not needed now are ended."""
        for name in set(self._servers) - {peer.name for peer in peers}:
            self.drop(name)

    @contextmanager
    def closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.keep([])


def _run_warm(outcome: Outcome, peers: Sequence[Peer], plan: Plan, fleet: _Fleet) -> None:
    for peer in peers:
        with _noting_failure(outcome, peer, plan):
            outcome.workload.prepare(Turn(fleet.server(peer), plan.scale))
    for number in range(plan.rounds + 1):
        for point in outcome.workload.points:
            for peer in peers:
                if peer.name in outcome.failures:
                    fleet.drop(peer.name)
                    continue
                with _noting_failure(outcome, peer, plan):
                    _take_turn(outcome, Turn(fleet.server(peer), plan.scale, point), number, plan.say)


def _run_fresh(outcome: Outcome, peers: Sequence[Peer], plan: Plan) -> None:
    for number in range(1, plan.rounds + 1):
        for point in outcome.workload.points:
            for peer in peers:
                if peer.name in outcome.failures:
                    continue
                with _noting_failure(outcome, peer, plan):
                    server = Server(peer, plan.base)
                    try:
                        turn = Turn(server, plan.scale, point)
                        outcome.workload.prepare(turn)
                        _take_turn(outcome, turn, number, plan.say)
                    finally:
                        server.close()


def _take_turn(outcome: Outcome, turn: Turn, number: int, say: Say) -> None:
    figures = outcome.workload.measure(turn)
    name = turn.server.peer.name
    place = "" if turn.point is None else f" at {turn.point}"
    shown = ", ".join(f"{m.title} {figures[m.key]:.{m.digits}f}" for m in outcome.workload.metrics if m.key in figures)
    what = f"round {number}" if number else "warm-up"
    say(f"{outcome.workload.name}{place}, {what}, {name}: {shown}")
    if number:
        outcome.samples.append(Sample(name, number, figures, turn.point))


@contextmanager
def _noting_failure(outcome: Outcome, peer: Peer, plan: Plan) -> Iterator[None]:
    """One peer's failure must not cost the others their figures."""
    try:
        yield
    except (BenchFailure, subprocess.TimeoutExpired) as failure:
        outcome.failures[peer.name] = str(failure)
        plan.say(f"{outcome.workload.name}, {peer.name}: FAILED: {failure}")
