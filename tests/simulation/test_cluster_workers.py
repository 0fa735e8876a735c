"""What is acked never comes back, and what is not acked always does, whatever fails in a cluster."""

from __future__ import annotations

import os

import pytest
from tests.simulation.cluster_workers import QueueScenario
from tests.simulation.telling import assert_nothing_goes_wrong
from tests.simulation.test_broker import FIRST

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "20"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_every_message_is_acked_and_none_comes_back(seed: int) -> None:
    assert_nothing_goes_wrong(QueueScenario(seed), seed)
