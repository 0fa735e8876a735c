"""The schedule follows from its seed and contains every kind of fault."""

from __future__ import annotations

import random
from itertools import islice

from tests.chaos.cluster import ROLES
from tests.chaos.faults import _INJECTORS, InjectedFault, leaves_majority
from tests.chaos.schedule import ALONE, KINDS, OF_ALL_BROKERS, ON_ONE_HOST, PlannedFault, Round, rounds

SESSION_SECONDS = 3.0


def drawn(seed: int, count: int) -> list[Round]:
    return list(islice(rounds(random.Random(seed), KINDS, ROLES, SESSION_SECONDS), count))


def test_a_seed_always_makes_the_same_schedule() -> None:
    assert drawn(7, 50) == drawn(7, 50)
    assert drawn(7, 50) != drawn(8, 50)


def test_every_kind_occurs_before_any_is_repeated() -> None:
    kinds = [fault.kind for one in drawn(7, 50) for fault in one.faults]
    assert sorted(kinds[: len(KINDS)]) == sorted(KINDS)


def test_faults_of_the_whole_cluster_occur_alone() -> None:
    for one in drawn(7, 200):
        kinds = [fault.kind for fault in one.faults]
        assert 1 <= len(kinds) <= 3
        assert len(kinds) == 1 or not set(kinds) & set(ALONE)


def test_on_one_host_every_possible_kind_occurs() -> None:
    assert set(ON_ONE_HOST) < set(KINDS)
    drawn_kinds = {
        fault.kind
        for one in islice(rounds(random.Random(7), ON_ONE_HOST, ROLES, SESSION_SECONDS), 20)
        for fault in one.faults
    }
    assert drawn_kinds == set(ON_ONE_HOST)


def test_there_is_a_way_to_inject_every_kind() -> None:
    assert set(_INJECTORS) == set(KINDS)


def test_writes_may_stop_when_all_brokers_are_affected() -> None:
    names = ("b1", "b2", "b3")
    for kind in OF_ALL_BROKERS:
        planned = PlannedFault(kind, "all", 10.0)
        fault = InjectedFault(planned, names, 0.0, 10.0, lambda: None)
        # A rolling restart affects one broker at a time, so it must leave writes possible.
        assert leaves_majority([fault]) == (kind == "rolling restart")
