"""Negative controls: the cluster simulation finds each planted bug."""

from __future__ import annotations

import pytest
from tests.simulation.cluster_controls import CONTROLS, Plant
from tests.simulation.cluster_scenario import ClusterScenario
from tests.simulation.many import run_seed

SEEDS = 150  # counted from the first known seed; changes to the broker or the scenario shift it


@pytest.mark.parametrize("plant", CONTROLS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    first = CONTROLS[plant]
    assert any(run_seed(seed, ClusterScenario).failure for seed in range(first, first + SEEDS))
