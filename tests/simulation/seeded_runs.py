"""Run a scenario from its seed: report how to repeat a failure, and compare the digests of repeated runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Protocol

from tests.simulation.progress import limited_time

from headrace.testkit.anomalies import Anomaly


class SeededScenario(Protocol):
    """A scenario that is determined by its seed."""

    @property
    def digest(self) -> str: ...

    def run(self) -> Sequence[Anomaly]: ...


def assert_no_anomalies(scenario: SeededScenario, seed: int) -> None:
    command = f"make sim SEED={seed} SEEDS=1"
    try:
        with limited_time():
            anomalies = scenario.run()
    except Exception as error:
        error.add_note(command)
        raise
    assert not anomalies, "\n".join([*map(str, anomalies), command])


def digest_of(scenario: SeededScenario) -> str:
    scenario.run()
    return scenario.digest


def digest_in_other_process(kind: type[SeededScenario], seed: int, hash_seed: str) -> str:
    """Return the digest of the same seed in another process, with another order of sets."""
    program = f"from {kind.__module__} import {kind.__name__} as Kind\nscenario = Kind({seed})\n"
    program += "scenario.run()\nprint(scenario.digest, end='')"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout
