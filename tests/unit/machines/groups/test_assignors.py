"""Every claimed partition is assigned to a member that claims it, evenly, with as few moves as possible."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.machines.groups.assignors import (
    ASSIGNORS,
    GroupAssignment,
    MemberSubscription,
    assign_ranges,
    assign_uniformly,
)

T, U, V = UUID(int=1), UUID(int=2), UUID(int=3)
MEMBERS = ("m1", "m2", "m3", "m4")
sizes = st.fixed_dictionaries({T: st.integers(1, 9), U: st.integers(1, 9), V: st.integers(1, 9)})
topic_sets = st.frozensets(st.sampled_from([T, U, V]))
subscriptions = st.dictionaries(st.sampled_from(MEMBERS), topic_sets, min_size=1)


def claims_of(
    subscribed: Mapping[str, frozenset[UUID]], held: GroupAssignment | None = None
) -> dict[str, MemberSubscription]:
    return {m: MemberSubscription(topics, frozenset((held or {}).get(m, ()))) for m, topics in subscribed.items()}


def claimed(subscribed: Mapping[str, frozenset[UUID]], sizes: Mapping[UUID, int]) -> dict[UUID, int]:
    topics = frozenset().union(*subscribed.values())
    return {topic: size for topic, size in sizes.items() if topic in topics}


def assert_is_whole(
    assignment: GroupAssignment, subscribed: Mapping[str, frozenset[UUID]], sizes: Mapping[UUID, int]
) -> None:
    assert assignment.keys() == subscribed.keys()
    given_out = [partition for partitions in assignment.values() for partition in partitions]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == {(topic, index) for topic, size in sizes.items() for index in range(size)}
    for member_id, partitions in assignment.items():
        assert {topic for topic, _ in partitions} <= subscribed[member_id]


@pytest.mark.parametrize("name", ASSIGNORS)
@given(before=subscriptions, after=subscriptions, sizes=sizes, grown=sizes)
def test_every_claimed_partition_is_assigned_to_a_member_that_claims_it(
    name: str,
    before: dict[str, frozenset[UUID]],
    after: dict[str, frozenset[UUID]],
    sizes: dict[UUID, int],
    grown: dict[UUID, int],
) -> None:
    assign = ASSIGNORS[name]
    first = assign(claims_of(before), claimed(before, sizes))
    assert_is_whole(first, before, claimed(before, sizes))
    second = assign(claims_of(after, first), claimed(after, grown))
    assert_is_whole(second, after, claimed(after, grown))


@given(subscribed=subscriptions, after=subscriptions, sizes=sizes)
def test_uniform_assignment_is_balanced(
    subscribed: dict[str, frozenset[UUID]], after: dict[str, frozenset[UUID]], sizes: dict[UUID, int]
) -> None:
    held = assign_uniformly(claims_of(subscribed), claimed(subscribed, sizes))
    assignment = assign_uniformly(claims_of(after, held), claimed(after, sizes))
    for partitions in assignment.values():
        for topic, _ in partitions:
            loads = [len(assignment[member_id]) for member_id, topics in after.items() if topic in topics]
            assert len(partitions) - min(loads) <= 1


@given(subscribed=subscriptions, sizes=sizes)
def test_uniform_moves_nothing_when_nothing_has_changed(
    subscribed: dict[str, frozenset[UUID]], sizes: dict[UUID, int]
) -> None:
    first = assign_uniformly(claims_of(subscribed), claimed(subscribed, sizes))
    assert assign_uniformly(claims_of(subscribed, first), claimed(subscribed, sizes)) == first


@given(members=st.integers(1, 6), size=st.integers(1, 30))
def test_uniform_moves_no_more_than_a_new_member_needs(members: int, size: int) -> None:
    subscribed = {f"m{number}": frozenset({T}) for number in range(members)}
    first = assign_uniformly(claims_of(subscribed), {T: size})
    subscribed["a-new-one"] = frozenset({T})
    second = assign_uniformly(claims_of(subscribed, first), {T: size})
    for member_id, partitions in first.items():
        assert second[member_id] <= partitions
    assert len(second["a-new-one"]) in (size // (members + 1), -(-size // (members + 1)))


def test_range_gives_each_member_the_same_numbers_of_every_topic() -> None:
    subscribed = {member_id: frozenset({T, U}) for member_id in ("m1", "m2", "m3")}
    assignment = assign_ranges(claims_of(subscribed), {T: 7, U: 7})
    assert assignment["m1"] == {(topic, index) for topic in (T, U) for index in (0, 1, 2)}
    assert assignment["m2"] == {(topic, index) for topic in (T, U) for index in (3, 4)}
    assert assignment["m3"] == {(topic, index) for topic in (T, U) for index in (5, 6)}


def test_range_knows_static_members_by_their_instance() -> None:
    topics = frozenset({T})
    before = assign_ranges(
        {"m1": MemberSubscription(topics, instance_id="i2"), "m2": MemberSubscription(topics, instance_id="i1")}, {T: 2}
    )
    after = assign_ranges(
        {"m1": MemberSubscription(topics, instance_id="i2"), "m9": MemberSubscription(topics, instance_id="i1")}, {T: 2}
    )
    assert before == {"m1": {(T, 1)}, "m2": {(T, 0)}}
    assert after == {"m1": {(T, 1)}, "m9": {(T, 0)}}
