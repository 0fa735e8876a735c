"""Whose turn it is."""

from __future__ import annotations

from pathlib import Path

from bench.failure import BenchFailure
from bench.schedule import Outcome, Plan, run
from bench.tests.fakes import FakePeer, FakeWorkload
from bench.workloads.workload import Turn


def _run(workload: FakeWorkload, peers: list[str], base: Path, rounds: int = 2) -> Outcome:
    plan = Plan(rounds, 1.0, base, lambda _: None)
    return next(iter(list(run([workload], {name: FakePeer(name) for name in peers}, plan))))


def test_peers_alternate_and_the_first_round_is_thrown_away(tmp_path: Path) -> None:
    workload = FakeWorkload(["a", "b"])
    outcome = _run(workload, ["a", "b"], tmp_path)
    assert workload.turns == ["a", "b"] * 3
    assert [(sample.peer, sample.round) for sample in outcome.samples] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def test_a_peer_that_the_workload_does_not_name_takes_no_part_but_another_commit_does(tmp_path: Path) -> None:
    workload = FakeWorkload(["headrace"])
    _run(workload, ["headrace", "headrace@HEAD~5", "redis"], tmp_path, rounds=1)
    assert workload.turns == ["headrace", "headrace@HEAD~5"] * 2


def test_one_peers_failure_is_noted_and_costs_the_others_nothing(tmp_path: Path) -> None:
    class Failing(FakeWorkload):
        def measure(self, turn: Turn) -> dict[str, float]:
            if turn.server.peer.name == "a":
                raise BenchFailure("stalled")
            return super().measure(turn)

    outcome = _run(Failing(["a", "b"]), ["a", "b"], tmp_path)
    assert outcome.failures == {"a": "stalled"}
    assert [sample.peer for sample in outcome.samples] == ["b", "b"]


def test_no_data_folder_is_left_behind(tmp_path: Path) -> None:
    _run(FakeWorkload(["a"]), ["a"], tmp_path, rounds=1)
    assert list(tmp_path.iterdir()) == []
