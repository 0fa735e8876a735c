"""Unit tests for the admin checks: they accept every allowed result, and find each planted violation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.chaos.admin_checks import (
    RULES,
    ClusterState,
    TopicState,
    admin_operations,
    check_administration,
    deleted_offsets,
)
from tests.chaos.admin_client import REPEATED_NS
from tests.chaos.names import CHANGING

Entries = list[list[Any]]
NAME = "scratch-0"


def done(number: int, kind: str, *, seconds: float = 0.1, **arguments: Any) -> Entries:
    began = number * 10**12
    return [["do", number, began, kind, arguments], ["done", number, began + int(seconds * 1e9)]]


def begun(number: int, kind: str, **arguments: Any) -> Entries:
    return [["do", number, number * 10**12, kind, arguments]]


def orderly() -> Entries:
    """A topic that is deleted and created again, and `changing`, which grew, was trimmed and moved."""
    return [
        *done(0, "create", topic=NAME, partitions=1, configs={"retention.ms": "1"}),
        *done(1, "write", topic=NAME, value="first life"),
        *done(2, "delete", topic=NAME),
        *done(3, "create", topic=NAME, partitions=1, configs={"retention.ms": "2"}),
        *done(4, "write", topic=NAME, value="second life"),
        *done(5, "grow", topic=NAME, partitions=2),
        *done(6, "config", topic=NAME, name="retention.ms", value="3"),
        *done(7, "drain", broker=2, drained=True),
        *done(8, "drain", broker=2, drained=False),
        *done(9, "reassign", topic=CHANGING, partition=0, replicas=[3, 1]),
        *done(10, "trim", topic=CHANGING, partition=0, offset=40),
    ]


SCRATCH_STATE = TopicState({0: (1, 2), 1: (2, 3)}, {"retention.ms": "3"}, {0: 0, 1: 0}, ["second life"])
CHANGING_STATE = TopicState({0: (3, 1)}, {}, {0: 40})
STATE = ClusterState("b1", {NAME: SCRATCH_STATE, CHANGING: CHANGING_STATE})


def scratch(**changes: Any) -> ClusterState:
    return replace(STATE, topics={**STATE.topics, NAME: replace(SCRATCH_STATE, **changes)})


def changing(**changes: Any) -> ClusterState:
    return replace(STATE, topics={**STATE.topics, CHANGING: replace(CHANGING_STATE, **changes)})


def test_confirmed_operations_are_in_effect() -> None:
    assert check_administration(admin_operations(orderly()), STATE) == []


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (replace(STATE, topics={CHANGING: CHANGING_STATE}), "'scratch-0' does not exist"),
        (replace(STATE, topics={**STATE.topics, "scratch-9": SCRATCH_STATE}), "creation was not requested"),
        (scratch(replicas={0: (1, 2)}), "has 1 partitions"),
        (scratch(replicas={0: (1,), 1: (1,), 2: (1,)}), "has 3 partitions"),
        (scratch(configs={"retention.ms": "2"}), "retention.ms of topic 'scratch-0' is 2"),
        (changing(replicas={0: (1, 3)}), "changing[0] is on (1, 3)"),
        (replace(STATE, moving=("changing[0]",)), "not complete"),
        (changing(log_starts={0: 39}), "although records below 40 were deleted"),
        (changing(log_starts={0: 41}), "no request deleted records above 40"),
        (scratch(log_starts={0: 1}), "no request deleted records above 0"),
        (replace(STATE, drained=frozenset({2})), "broker 2 is drained"),
        (replace(STATE, drained=frozenset({1})), "no drain was requested"),
        (scratch(values=[]), "lost: 'second life'"),
        (scratch(values=["second life", "second life"]), "doubled"),
        (scratch(values=["second life", "first life"]), "record of a deleted topic: 'first life'"),
    ],
)
def test_only_operations_without_effect_are_found(state: ClusterState, sentence: str) -> None:
    (found,) = check_administration(admin_operations(orderly()), state)
    assert found.startswith("b1: ")
    assert sentence in found


def test_every_rule_has_its_planted_anomaly() -> None:
    operations = admin_operations(orderly())
    broken: tuple[Callable[[], ClusterState], ...] = (
        lambda: replace(STATE, topics={CHANGING: CHANGING_STATE}),
        lambda: scratch(replicas={0: (1, 2)}, configs={}, values=[]),
        lambda: changing(replicas={0: (1, 3)}, log_starts={0: 0}),
        lambda: replace(STATE, drained=frozenset({2})),
    )
    assert {rule for rule in RULES for make in broken if rule(operations, make())} == set(RULES)


def test_an_operation_that_was_not_confirmed_may_be_in_force_or_not() -> None:
    entries = [
        *orderly(),
        *begun(11, "config", topic=NAME, name="retention.ms", value="4"),
        *begun(12, "grow", topic=NAME, partitions=3),
        *begun(13, "reassign", topic=CHANGING, partition=0, replicas=[1, 2]),
        *begun(14, "trim", topic=CHANGING, partition=0, offset=50),
        *begun(15, "write", topic=NAME, value="perhaps"),
        *begun(16, "drain", broker=3, drained=True),
        *begun(17, "delete", topic=NAME),
    ]
    operations = admin_operations(entries)
    in_force = ClusterState(
        "b1",
        {
            NAME: TopicState(
                {0: (1, 2), 1: (2, 3), 2: (1, 3)}, {"retention.ms": "4"}, {0: 0}, ["second life", "perhaps"]
            ),
            CHANGING: TopicState({0: (1, 2)}, {}, {0: 45}),
        },
        frozenset({3}),
    )
    for state in (STATE, in_force, replace(STATE, topics={CHANGING: CHANGING_STATE})):
        assert check_administration(operations, state) == []


def test_an_operation_that_may_have_been_repeated_can_win_over_a_later_one() -> None:
    seconds = REPEATED_NS / 1e9
    slow = done(11, "config", topic=NAME, name="retention.ms", value="4", seconds=seconds)
    quick = done(11, "config", topic=NAME, name="retention.ms", value="4", seconds=seconds / 2)
    last = done(12, "config", topic=NAME, name="retention.ms", value="5")
    state = scratch(configs={"retention.ms": "4"})
    assert check_administration(admin_operations([*orderly(), *slow, *last]), state) == []
    assert check_administration(admin_operations([*orderly(), *quick, *last]), state) != []


def test_a_drain_moves_what_was_reassigned_before_it() -> None:
    state = changing(replicas={0: (1, 2)})
    assert (
        check_administration(admin_operations([*orderly(), *done(11, "drain", broker=3, drained=False)]), state) == []
    )


def test_records_below_the_highest_trim_that_began_may_be_deleted() -> None:
    entries = [*orderly(), *begun(11, "trim", topic=CHANGING, partition=0, offset=50)]
    assert deleted_offsets(admin_operations(entries), CHANGING) == {0: 50}


def test_a_creation_in_doubt_after_a_deletion_is_judged_by_itself() -> None:
    """The response of a creation was lost, and the repeated request got TopicAlreadyExists."""
    entries = [
        *done(0, "create", topic=NAME, partitions=3, configs={"retention.ms": "1"}),
        *done(1, "write", topic=NAME, value="first life"),
        *done(2, "delete", topic=NAME),
        *begun(3, "create", topic=NAME, partitions=2, configs={"retention.ms": "2"}),
    ]
    made_anew = TopicState({0: (1, 2), 1: (2, 3)}, {"retention.ms": "2"}, {0: 0, 1: 0}, [])
    assert check_administration(admin_operations(entries), ClusterState("b1", {NAME: made_anew})) == []
    of_first_life = replace(made_anew, values=["first life"])
    assert check_administration(admin_operations(entries), ClusterState("b1", {NAME: of_first_life}))
