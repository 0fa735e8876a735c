"""The whole broker from a seed: nothing acknowledged is lost, doubled or moved, whatever fails (I1-I3, I8-I10, I14).

`make sim SEED=17 SEEDS=1` runs one seed again; the same seed gives the same story, to the last byte.
"""

from __future__ import annotations

import os

import pytest
from tests.simulation.scenario import Scenario
from tests.simulation.seeded_runs import assert_no_anomalies, digest_in_other_process, digest_of

FIRST = int(os.environ.get("HEADRACE_SEED", "1"))
SEEDS = int(os.environ.get("HEADRACE_SEEDS", "120"))  # a second each; ten show every planted bug (test_controls.py)

# Seeds that have found something before, and what it was.
FOUND = {
    20: "after a failed sync and kill -9, the page cache was believed: pages were acknowledged that were never on disk",
    26: "OffsetFetch told of a commit that was not durable yet, and a power cut took it back",
    313: "bytes of an append that a full disk had refused came back after a power cut, and hid the segment behind them",
    452: "as 313",
    3169: "a segment survived a power cut though the one before it did not: the log then began in the middle",
}


@pytest.mark.parametrize("seed", sorted({*range(FIRST, FIRST + SEEDS), *(FOUND if SEEDS > 1 else ())}))
def test_a_broker_keeps_its_promises_through_crashes_and_network_faults(seed: int) -> None:
    assert_no_anomalies(Scenario(seed), seed)


def test_the_same_seed_tells_the_same_story() -> None:
    stories = {
        digest_of(Scenario(FIRST)),
        *(digest_in_other_process(Scenario, FIRST, other) for other in ("1", "4711")),
    }
    assert stories == {digest_of(Scenario(FIRST))}
