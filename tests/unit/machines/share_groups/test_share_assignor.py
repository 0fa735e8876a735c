"""Every partition has a member, every member a partition; assignments are even and sticky."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headrace.machines.groups.assignors import GroupAssignment, MemberSubscription
from headrace.machines.share_groups.share_assignor import assign_share_partitions

T, U, V = UUID(int=1), UUID(int=2), UUID(int=3)
MEMBERS = tuple(f"m{number}" for number in range(12))
sizes = st.dictionaries(st.sampled_from([T, U, V]), st.integers(1, 6), min_size=1)
members = st.sets(st.sampled_from(MEMBERS), min_size=1)
subscriptions = st.dictionaries(st.sampled_from(MEMBERS), st.frozensets(st.sampled_from([T, U, V])), min_size=1)


def assigned(
    subscribed: Mapping[str, frozenset[UUID]], sizes: Mapping[UUID, int], held: GroupAssignment | None = None
) -> GroupAssignment:
    claims = {
        member_id: MemberSubscription(topics & sizes.keys(), frozenset((held or {}).get(member_id, ())))
        for member_id, topics in subscribed.items()
    }
    topics = frozenset().union(*(claim.topics for claim in claims.values()))
    return assign_share_partitions(claims, {topic: size for topic, size in sizes.items() if topic in topics})


def alike(members: set[str], sizes: Mapping[UUID, int], held: GroupAssignment | None = None) -> GroupAssignment:
    return assigned(dict.fromkeys(members, frozenset(sizes)), sizes, held)


def readers(assignment: GroupAssignment) -> Counter[tuple[UUID, int]]:
    return Counter(partition for partitions in assignment.values() for partition in partitions)


def test_more_partitions_than_members_are_spread() -> None:
    assert alike({"m1", "m2"}, {T: 3}) == {"m1": {(T, 0), (T, 2)}, "m2": {(T, 1)}}


def test_more_members_than_partitions_share_them() -> None:
    found = alike({"m1", "m2", "m3", "m4", "m5"}, {T: 2})
    assert all(len(partitions) == 1 for partitions in found.values())
    assert sorted(readers(found).values()) == [2, 3]


def test_subscriptions_to_unknown_topics_get_nothing() -> None:
    assert alike({"m1"}, {}) == {"m1": set()}


@given(members, sizes)
def test_members_with_equal_subscriptions_get_equal_shares(members: set[str], sizes: dict[UUID, int]) -> None:
    found = alike(members, sizes)
    partitions = {(topic, index) for topic, size in sizes.items() for index in range(size)}
    per_member = [len(one) for one in found.values()]
    per_partition = readers(found)
    assert per_partition.keys() == partitions
    assert min(per_member) >= 1
    assert max(per_member) - min(per_member) <= 1
    assert max(per_partition.values()) - min(per_partition.values()) <= 1
    assert max(len(members), len(partitions)) == sum(per_member)


@given(subscriptions, sizes)
def test_every_member_gets_some_of_its_subscribed_partitions_and_no_others(
    subscribed: dict[str, frozenset[UUID]], sizes: dict[UUID, int]
) -> None:
    found = assigned(subscribed, sizes)
    wanted = {topic for topics in subscribed.values() for topic in topics if topic in sizes}
    assert readers(found).keys() == {(topic, index) for topic in wanted for index in range(sizes[topic])}
    for member_id, partitions in found.items():
        assert {topic for topic, _ in partitions} <= subscribed[member_id]
        assert bool(partitions) == bool(subscribed[member_id] & sizes.keys())


@given(members, sizes)
def test_a_balanced_assignment_does_not_change(members: set[str], sizes: dict[UUID, int]) -> None:
    found = alike(members, sizes)
    assert alike(members, sizes, found) == found


def test_a_new_member_takes_only_its_share() -> None:
    before = alike({"m1", "m2"}, {T: 6})
    after = alike({"m1", "m2", "m3"}, {T: 6}, before)
    assert all(after[member_id] < before[member_id] for member_id in before)
    assert len(after["m3"]) == 2


def test_a_leaving_member_does_not_move_others() -> None:
    before = alike({"m1", "m2", "m3"}, {T: 6})
    after = alike({"m1", "m3"}, {T: 6}, before)
    assert all(after[member_id] > before[member_id] for member_id in after)
