"""Runs many seeds of the cluster's simulation side by side and tells which fail, and how to repeat them.

python -m tests.simulation.many --seeds 1-2000 --jobs 2
python -m tests.simulation.many --seeds 1-500 --controls        the first seed that shows each planted bug
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from tests.simulation.cluster_controls import CONTROLS
from tests.simulation.cluster_scenario import ClusterScenario

REPORT_EVERY = 100


class Outcome(NamedTuple):
    seed: int
    why: str | None
    """What went wrong, if anything did."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.many")
    parser.add_argument("--seeds", type=_range, default=range(1, 101), metavar="FIRST-LAST")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--controls", action="store_true", help="look for the first seed that shows each planted bug")
    arguments = parser.parse_args()
    if arguments.controls:
        return _find_controls(arguments.seeds)
    return _run_all(arguments.seeds, arguments.jobs)


def failure_of(seed: int) -> Outcome:
    try:
        anomalies = ClusterScenario(seed).run()
    except Exception as error:  # whatever it is, the other seeds are to be run as well
        return Outcome(seed, _told(error))
    return Outcome(seed, "; ".join(map(str, anomalies[:3])) or None)


def _told(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_told, error.exceptions))
    cause = "" if error.__cause__ is None else f" (from {_told(error.__cause__)})"
    return f"{type(error).__name__}: {error}{cause}"


def _run_all(seeds: range, jobs: int) -> int:
    began, failed = time.monotonic(), []
    with _outcomes(seeds, jobs) as outcomes:
        for count, (seed, why) in enumerate(outcomes, 1):
            if why is not None:
                failed.append(seed)
                _say(f"seed {seed}: {why}\n    make sim SEED={seed} SEEDS=1")
            if count % REPORT_EVERY == 0 or count == len(seeds):
                per_minute = count / (time.monotonic() - began) * 60
                _say(f"{count} of {len(seeds)} seeds, {per_minute:.0f} per minute, {len(failed)} failed")
    return 1 if failed else 0


def _find_controls(seeds: range) -> int:
    _be_quiet()
    missed = 0
    for plant in CONTROLS:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            found = next((outcome for outcome in map(failure_of, seeds) if outcome.why), None)
        missed += found is None
        _say(f"{plant.__name__}: " + (f"seed {found.seed}: {found.why}" if found else "not found"))
    return 1 if missed else 0


@contextmanager
def _outcomes(seeds: range, jobs: int) -> Iterator[Iterator[Outcome]]:
    if jobs == 1:
        _be_quiet()
        yield map(failure_of, seeds)
        return
    with multiprocessing.Pool(jobs, _be_quiet) as pool:
        yield pool.imap_unordered(failure_of, seeds, chunksize=4)


def _be_quiet() -> None:
    logging.disable(logging.CRITICAL)  # brokers tell of faults, and here these are wanted


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    raise SystemExit(main())
