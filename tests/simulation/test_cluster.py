"""A cluster from a seed: acknowledged records are not lost, duplicated or moved, and the cluster recovers.

It covers I1-I5, I7-I11, I13-I18 and I23-I26. `make sim SEED=17 SEEDS=1` repeats a seed; `python -m
tests.simulation.many --seeds 1-2000 --jobs 2` runs thousands.
"""

from __future__ import annotations

import os

import pytest
from tests.simulation.cluster_scenario import ClusterScenario
from tests.simulation.seeded_runs import assert_no_anomalies, digest_in_other_process, digest_of
from tests.simulation.test_broker import FIRST

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "60"))

# Seeds that found bugs, and the bugs. After later changes a seed may produce another run.
FOUND = {
    1227: "the response to a controller election was lost, and the cluster had no controller from then on",
    1854: "a follower dropped a response, and the leader did not repeat its content",
    2623: "the last complete replica left the in-sync set when its disk was full",
    1225: "a coordinator that did not know that it was replaced responded that a group had no committed offsets",
    1766: "a coordinator whose session was in doubt for a while never ended a decided transaction",
    1850: "a replica that was removed and added again before its broker noticed never joined the in-sync set",
}


@pytest.mark.parametrize("seed", sorted({*range(FIRST, FIRST + SEEDS), *(FOUND if SEEDS > 1 else ())}))
def test_a_cluster_keeps_its_promises_through_every_kind_of_fault(seed: int) -> None:
    assert_no_anomalies(ClusterScenario(seed), seed)


def test_the_same_seed_produces_the_same_digest() -> None:
    digests = {
        digest_of(ClusterScenario(FIRST)),
        *(digest_in_other_process(ClusterScenario, FIRST, other) for other in ("1", "4711")),
    }
    assert digests == {digest_of(ClusterScenario(FIRST))}
