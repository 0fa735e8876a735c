"""Negative controls: the features about broken storage find each planted bug."""

from __future__ import annotations

import pytest
from tests.simulation.many import outcomes_with, shows_bug
from tests.simulation.regression_controls import Control
from tests.simulation.storage_controls import STORAGE_CONTROLS

SEEDS = 600  # counted from the first known seed; about one in twelve draws the feature


@pytest.mark.parametrize("control", STORAGE_CONTROLS, ids=lambda control: control.plant.__name__)
def test_a_planted_storage_bug_is_found(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    control.plant(monkeypatch)
    seeds = range(control.first_seed, control.first_seed + SEEDS)
    assert any(shows_bug(outcome, control.shows) for outcome in outcomes_with(control, seeds))
