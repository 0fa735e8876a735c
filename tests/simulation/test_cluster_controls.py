"""Negative controls: a cluster that is broken on purpose must be found out, or its simulation proves nothing."""

from __future__ import annotations

import pytest
from tests.simulation.cluster_controls import CONTROLS, Plant
from tests.simulation.cluster_scenario import ClusterScenario
from tests.simulation.many import run_seed

SEEDS = 150  # from the one that was known to show it: every change of the broker or of the scenario shifts them


@pytest.mark.parametrize("plant", CONTROLS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    first = CONTROLS[plant]
    assert any(run_seed(seed, ClusterScenario).why for seed in range(first, first + SEEDS))
