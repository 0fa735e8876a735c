"""A cluster from a seed, with the features that the seed draws: retention, queues, wrong clocks and others.

`python -m tests.simulation.many --seeds 1-2000 --jobs 2` runs thousands of seeds.
"""

from __future__ import annotations

import os

import pytest
from tests.simulation.seeded_runs import assert_no_anomalies, digest_in_other_process, digest_of
from tests.simulation.test_broker import FIRST
from tests.simulation.wide_scenario import WideScenario

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "25"))
FAILED_ONCE = (134, 236, 240, 367, 509, 517, 676, 806, 832, 847, 849, 851, 1152, 1153, 1284, 1359, 1637)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_a_cluster_keeps_its_promises_with_every_feature(seed: int) -> None:
    assert_no_anomalies(WideScenario(seed), seed)


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_seed_that_failed_once_does_not_fail_again(seed: int) -> None:
    assert_no_anomalies(WideScenario(seed), seed)


def test_the_same_seed_produces_the_same_digest_with_features() -> None:
    assert digest_of(WideScenario(FIRST)) == digest_in_other_process(WideScenario, FIRST, "4711")
