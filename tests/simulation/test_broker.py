"""A single broker from a seed: acknowledged records are not lost, duplicated or moved (I1-I3, I8-I10, I14).

`make sim SEED=17 SEEDS=1` repeats a seed; the same seed produces the same run, byte for byte.
"""

from __future__ import annotations

import os

import pytest
from tests.simulation.scenario import Scenario
from tests.simulation.seeded_runs import assert_no_anomalies, digest_in_other_process, digest_of

FIRST = int(os.environ.get("HEADRACE_SEED", "1"))
SEEDS = int(os.environ.get("HEADRACE_SEEDS", "120"))  # a second each; ten find every planted bug (test_controls.py)

# Seeds that found bugs, and the bugs.
FOUND = {
    20: "after a failed sync and SIGKILL, recovery trusted the page cache: acknowledged pages were never on disk",
    26: "OffsetFetch returned a commit that was not durable yet, and a power failure reverted it",
    313: "bytes of an append that failed on a full disk reappeared after a power failure and hid the next segment",
    452: "the same as 313",
    3169: "a segment survived a power failure although the one before it did not: the log began in the middle",
}


@pytest.mark.parametrize("seed", sorted({*range(FIRST, FIRST + SEEDS), *(FOUND if SEEDS > 1 else ())}))
def test_a_broker_keeps_its_promises_through_crashes_and_network_faults(seed: int) -> None:
    assert_no_anomalies(Scenario(seed), seed)


def test_the_same_seed_produces_the_same_digest() -> None:
    digests = {
        digest_of(Scenario(FIRST)),
        *(digest_in_other_process(Scenario, FIRST, other) for other in ("1", "4711")),
    }
    assert digests == {digest_of(Scenario(FIRST))}
