"""The order of the trials."""

from __future__ import annotations

from pathlib import Path

from bench.failure import BenchFailure
from bench.schedule import Plan, WorkloadResult, run
from bench.tests.fakes import FakePeer, FakeWorkload
from bench.workloads.workload import Trial


def _run(workload: FakeWorkload, peers: list[str], base: Path, rounds: int = 2) -> WorkloadResult:
    plan = Plan(rounds, 1.0, base, lambda _: None)
    return next(iter(list(run([workload], {name: FakePeer(name) for name in peers}, plan))))


def test_peers_alternate_and_the_first_round_is_discarded(tmp_path: Path) -> None:
    workload = FakeWorkload(["a", "b"])
    result = _run(workload, ["a", "b"], tmp_path)
    assert workload.trials == ["a", "b"] * 3
    assert [(sample.peer, sample.round) for sample in result.samples] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def test_only_peers_of_the_workload_and_other_commits_of_headrace_are_measured(tmp_path: Path) -> None:
    workload = FakeWorkload(["headrace"])
    _run(workload, ["headrace", "headrace@HEAD~5", "redis"], tmp_path, rounds=1)
    assert workload.trials == ["headrace", "headrace@HEAD~5"] * 2


def test_the_failure_of_one_peer_does_not_affect_the_others(tmp_path: Path) -> None:
    class Failing(FakeWorkload):
        def measure(self, trial: Trial) -> dict[str, float]:
            if trial.server.peer.name == "a":
                raise BenchFailure("stalled")
            return super().measure(trial)

    result = _run(Failing(["a", "b"]), ["a", "b"], tmp_path)
    assert result.failures == {"a": "stalled"}
    assert [sample.peer for sample in result.samples] == ["b", "b"]


def test_no_data_folder_is_left_behind(tmp_path: Path) -> None:
    _run(FakeWorkload(["a"]), ["a"], tmp_path, rounds=1)
    assert list(tmp_path.iterdir()) == []
