"""A cluster from a seed: nothing acknowledged is lost, doubled or moved, whatever fails, and all is well soon after.

It concerns I1-I5, I7-I11, I13-I18 and I23-I26. `make sim SEED=17 SEEDS=1` runs one seed again, and thousands are run by
`python -m tests.simulation.many --seeds 1-2000 --jobs 2`.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.simulation.cluster_scenario import ClusterScenario
from tests.simulation.test_broker import FIRST

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "60"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_a_cluster_keeps_its_promises_through_every_kind_of_fault(seed: int) -> None:
    again = f"make sim SEED={seed} SEEDS=1"
    try:
        anomalies = ClusterScenario(seed).run()
    except Exception as error:
        error.add_note(again)
        raise
    assert not anomalies, "\n".join([*map(str, anomalies), again])


def test_the_same_seed_tells_the_same_story() -> None:
    def digest() -> str:
        scenario = ClusterScenario(FIRST)
        scenario.run()
        return scenario.digest

    def digest_elsewhere(hash_seed: str) -> str:
        program = (
            f"from tests.simulation.cluster_scenario import ClusterScenario\nscenario = ClusterScenario({FIRST})\n"
        )
        program += "scenario.run()\nprint(scenario.digest, end='')"
        run = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return run.stdout

    assert {digest(), digest_elsewhere("1"), digest_elsewhere("4711")} == {digest()}
