"""Companions stay with their owners, whatever fails."""

from __future__ import annotations

import os

import pytest
from tests.simulation.colocated_topics import ColocatedTopicScenario
from tests.simulation.seeded_runs import assert_no_anomalies
from tests.simulation.test_broker import FIRST

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "20"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_companions_are_where_their_owners_are_when_all_is_well_again(seed: int) -> None:
    assert_no_anomalies(ColocatedTopicScenario(seed), seed)
