"""Run many seeds of the cluster simulation in parallel; report failing seeds and how to repeat them.

python -m tests.simulation.many --seeds 1-2000 --jobs 2
python -m tests.simulation.many --seeds 1-2000 --controls       the first seed that finds each planted bug
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from tests.simulation.admin_controls import ADMIN_CONTROLS
from tests.simulation.cluster_controls import CONTROLS, Plant
from tests.simulation.cluster_scenario import ClusterScenario
from tests.simulation.features.feature import Feature
from tests.simulation.progress import SEED_SECONDS, limited_time
from tests.simulation.regression_controls import REGRESSION_CONTROLS, Control
from tests.simulation.storage_controls import STORAGE_CONTROLS
from tests.simulation.wide_scenario import WideScenario, features_of

REPORT_EVERY = 100
CONTROL_SECONDS = 20.0
"""Processor time limit of a seed with a planted bug, which may be an endless loop."""


class Outcome(NamedTuple):
    """`failure` describes what went wrong; None if nothing did."""

    seed: int
    failure: str | None
    cpu_seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.many")
    parser.add_argument("--seeds", type=_range, default=range(1, 101), metavar="FIRST-LAST")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--controls", action="store_true", help="search for the first seed that finds each planted bug")
    arguments = parser.parse_args()
    if arguments.controls:
        return _find_controls(arguments.seeds)
    return _run_all(arguments.seeds, arguments.jobs)


def run_seed(seed: int, kind: type[ClusterScenario] = WideScenario, *, limit_seconds: float = SEED_SECONDS) -> Outcome:
    began = time.process_time()
    try:
        with limited_time(limit_seconds):
            failure = "; ".join(map(str, kind(seed).run()[:3])) or None
    except Exception as error:  # report any failure and run the other seeds
        failure = _describe(error)
    return Outcome(seed, failure, time.process_time() - began)


def _describe(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_describe, error.exceptions))
    cause = "" if error.__cause__ is None else f" (from {_describe(error.__cause__)})"
    return f"{type(error).__name__}: {error}{cause}"


def _run_all(seeds: range, jobs: int) -> int:
    began, failed, cpu_seconds = time.monotonic(), [], 0.0
    with _outcomes(seeds, jobs) as outcomes:
        for count, (seed, failure, seconds) in enumerate(outcomes, 1):
            cpu_seconds += seconds
            if failure is not None:
                failed.append(seed)
                _print_line(f"seed {seed}: {failure}\n    make sim SEED={seed} SEEDS=1")
            if count % REPORT_EVERY == 0 or count == len(seeds):
                per_minute = count / (time.monotonic() - began) * 60
                each = f"{cpu_seconds / count:.2f} s of processor time each"
                _print_line(f"{count} of {len(seeds)} seeds, {per_minute:.0f} per minute, {each}, {len(failed)} failed")
    return 1 if failed else 0


def _find_controls(seeds: range) -> int:
    _disable_logging()
    missed = 0
    for plant in CONTROLS:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            outcomes = (run_seed(seed, ClusterScenario, limit_seconds=CONTROL_SECONDS) for seed in seeds)
            missed += not _report_control(plant, outcomes, "")
    for control in (*REGRESSION_CONTROLS, *STORAGE_CONTROLS, *ADMIN_CONTROLS):
        with pytest.MonkeyPatch.context() as patch:
            control.plant(patch)
            missed += not _report_control(control.plant, outcomes_with(control, seeds), control.shows)
    return 1 if missed else 0


def _report_control(plant: Plant, outcomes: Iterable[Outcome], shows: str) -> bool:
    """Report the first outcome that shows the bug; return whether there is one."""
    found = next((outcome for outcome in outcomes if shows_bug(outcome, shows)), None)
    _print_line(f"{plant.__name__}: " + (f"seed {found.seed}: {found.failure}" if found else "not found"))
    return found is not None


def shows_bug(outcome: Outcome, shows: str) -> bool:
    return outcome.failure is not None and shows in outcome.failure


def outcomes_with(control: Control, seeds: Iterable[int]) -> Iterator[Outcome]:
    """Run the seeds that draw the control's feature, while its bug is planted."""
    return (run_seed(seed, limit_seconds=CONTROL_SECONDS) for seed in seeds_with(control.feature, seeds))


def seeds_with(feature: type[Feature], seeds: Iterable[int]) -> Iterator[int]:
    """Return the seeds that draw the feature; no others can show a bug that only it can."""
    return (seed for seed in seeds if feature in features_of(seed))


@contextmanager
def _outcomes(seeds: range, jobs: int) -> Iterator[Iterator[Outcome]]:
    if jobs == 1:
        _disable_logging()
        yield map(run_seed, seeds)
        return
    with multiprocessing.Pool(jobs, _disable_logging) as pool:
        yield pool.imap_unordered(run_seed, seeds, chunksize=4)


def _disable_logging() -> None:
    logging.disable(logging.CRITICAL)  # brokers log every injected fault


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    raise SystemExit(main())
