"""Companions stay with their owners, whatever fails."""

from __future__ import annotations

import os

import pytest
from tests.simulation.cluster_companions import CompanionScenario
from tests.simulation.telling import assert_nothing_goes_wrong
from tests.simulation.test_broker import FIRST

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "20"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_companions_are_where_their_owners_are_when_all_is_well_again(seed: int) -> None:
    assert_nothing_goes_wrong(CompanionScenario(seed), seed)
