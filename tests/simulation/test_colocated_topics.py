"""Co-located topics keep the replicas and leaders of their owners, whatever fails."""

from __future__ import annotations

import os

import pytest
from tests.simulation.colocated_topics import ColocatedTopicScenario
from tests.simulation.seeded_runs import assert_no_anomalies
from tests.simulation.test_broker import FIRST

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "20"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_colocated_topics_have_the_replicas_and_leaders_of_their_owners_after_recovery(seed: int) -> None:
    assert_no_anomalies(ColocatedTopicScenario(seed), seed)
