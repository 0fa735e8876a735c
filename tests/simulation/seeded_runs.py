"""What every simulation owes: a way to repeat it, and the same story wherever the same seed is told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Protocol

from tests.simulation.progress import limited_time

from headrace.testkit.anomalies import Anomaly


class SeededScenario(Protocol):
    """A scenario that was made from a seed."""

    @property
    def digest(self) -> str: ...

    def run(self) -> Sequence[Anomaly]: ...


def assert_no_anomalies(scenario: SeededScenario, seed: int) -> None:
    again = f"make sim SEED={seed} SEEDS=1"
    try:
        with limited_time():
            anomalies = scenario.run()
    except Exception as error:
        error.add_note(again)
        raise
    assert not anomalies, "\n".join([*map(str, anomalies), again])


def digest_of(scenario: SeededScenario) -> str:
    scenario.run()
    return scenario.digest


def digest_in_other_process(kind: type[SeededScenario], seed: int, hash_seed: str) -> str:
    """The digest of the same seed in another process, where sets have another order."""
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
