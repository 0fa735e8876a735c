"""Negative controls: each directed feature finds the bug for which it creates the situation."""

from __future__ import annotations

import pytest
from tests.simulation.many import outcomes_with, shows_bug
from tests.simulation.regression_controls import REGRESSION_CONTROLS, Control
from tests.simulation.wide_scenario import DIRECTED_FEATURES

SEEDS = 300  # counted from the first known seed; changes to the broker or the scenario shift it
CONTROLS = [control for control in REGRESSION_CONTROLS if control.feature in DIRECTED_FEATURES]


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.plant.__name__)
def test_a_planted_bug_is_found(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    control.plant(monkeypatch)
    seeds = range(control.first_seed, control.first_seed + SEEDS)
    assert any(shows_bug(outcome, control.shows) for outcome in outcomes_with(control, seeds))
