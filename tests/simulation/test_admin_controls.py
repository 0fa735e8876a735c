"""Negative controls: the feature that administers a whole cluster finds each planted bug."""

from __future__ import annotations

import pytest
from tests.simulation.admin_controls import ADMIN_CONTROLS
from tests.simulation.many import outcomes_with, shows_bug
from tests.simulation.regression_controls import Control

SEEDS = 100  # counted from the first known seed; changes to the broker or the scenario shift it


KNOWN = [control for control in ADMIN_CONTROLS if control.first_seed]


@pytest.mark.parametrize("control", KNOWN, ids=lambda control: control.plant.__name__)
def test_a_planted_bug_is_found(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    control.plant(monkeypatch)
    seeds = range(control.first_seed, control.first_seed + SEEDS)
    assert any(shows_bug(outcome, control.shows) for outcome in outcomes_with(control, seeds))
