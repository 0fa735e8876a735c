"""Joint commits through every kind of fault, from a seed: each sequence is committed whole, once and in order.

`make sim SEED=17 SEEDS=1` repeats a seed.
"""

from __future__ import annotations

import os

import pytest
from tests.simulation.joint_commit_scenario import JointCommitScenario
from tests.simulation.seeded_runs import assert_no_anomalies, digest_in_other_process, digest_of
from tests.simulation.test_broker import FIRST

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "24"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_a_sequence_is_committed_whole_and_once_whatever_fails(seed: int) -> None:
    assert_no_anomalies(JointCommitScenario(seed), seed)


def test_the_same_seed_produces_the_same_digest() -> None:
    assert digest_of(JointCommitScenario(FIRST)) == digest_in_other_process(JointCommitScenario, FIRST, "4711")
