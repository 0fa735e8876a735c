"""Every partition has exactly one subscribed owner, and assignments are balanced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.groups.assignors import (
    ASSIGNORS,
    Assignor,
    ConsumerSubscription,
    PartitionCounts,
    assign_cooperative_sticky,
    assign_range,
    assign_round_robin,
)
from headrace.client.groups.group_membership import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.client.metadata import TopicPartition

TOPICS = ["a", "b", "c"]
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)
MEMBERS = st.dictionaries(
    st.sampled_from(["m1", "m2", "m3", "m4", "m5"]),
    st.lists(st.sampled_from(TOPICS), min_size=1, unique=True),
    min_size=1,
)


def settle(
    members: dict[str, ConsumerSubscription], counts: PartitionCounts
) -> tuple[dict[str, list[TopicPartition]], int]:
    """Run cooperative rounds until no member must revoke a partition; return the result and the number of rounds."""
    for rounds in range(1, 10):
        assigned = assign_cooperative_sticky(members, counts)
        settled = all(set(members[name].owned) <= set(assigned[name]) for name in members)
        members = {name: ConsumerSubscription(m.topics, assigned[name], rounds) for name, m in members.items()}
        if settled:
            return assigned, rounds
    raise AssertionError("it never settles")


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda assignor: assignor.name)
@given(wishes=MEMBERS, counts=COUNTS)
def test_every_wanted_partition_goes_to_one_member_that_wants_it(
    assignor: Assignor, wishes: dict[str, list[str]], counts: dict[str, int]
) -> None:
    members = {name: ConsumerSubscription(topics) for name, topics in wishes.items()}
    assigned = assignor.assign(members, counts)
    given_out = sorted(target for targets in assigned.values() for target in targets)
    wanted = {topic for topics in wishes.values() for topic in topics} & counts.keys()
    assert given_out == sorted(TopicPartition(t, n) for t in wanted for n in range(counts[t]))
    assert all(target.topic in wishes[name] for name, targets in assigned.items() for target in targets)


@given(names=st.sets(st.sampled_from("pqrstu"), min_size=1), counts=COUNTS)
def test_round_robin_is_even_when_all_want_the_same(names: set[str], counts: dict[str, int]) -> None:
    assigned = assign_round_robin({name: ConsumerSubscription(TOPICS) for name in names}, counts)
    sizes = [len(targets) for targets in assigned.values()]
    assert max(sizes) - min(sizes) <= 1


def test_range_gives_the_first_members_one_more_and_lines_topics_up() -> None:
    members = {"m2": ConsumerSubscription(["a", "b"]), "m1": ConsumerSubscription(["a", "b"])}
    assigned = assign_range(members, {"a": 3, "b": 3})
    assert [(t.topic, t.partition) for t in assigned["m1"]] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert [(t.topic, t.partition) for t in assigned["m2"]] == [("a", 2), ("b", 2)]


@given(names=st.sets(st.sampled_from("pqrstu"), min_size=1), counts=COUNTS, newcomers=st.sets(st.sampled_from("vw")))
def test_cooperative_rounds_end_even_and_move_no_more_than_needed(
    names: set[str], counts: dict[str, int], newcomers: set[str]
) -> None:
    before, _ = settle({name: ConsumerSubscription(TOPICS) for name in names}, counts)
    members = {name: ConsumerSubscription(TOPICS, before[name], 1) for name in names}
    members |= {name: ConsumerSubscription(TOPICS) for name in newcomers}
    after, rounds = settle(members, counts)
    sizes = [len(targets) for targets in after.values()]
    assert max(sizes) - min(sizes) <= 1
    assert rounds <= 3
    moved = sum(len(set(before[name]) - set(after[name])) for name in names)
    assert moved == sum(len(after[name]) for name in newcomers)


@given(wishes=MEMBERS, counts=COUNTS, claims=st.data())
def test_a_cooperative_round_never_assigns_a_partition_that_another_member_still_owns(
    wishes: dict[str, list[str]], counts: dict[str, int], claims: st.DataObject
) -> None:
    everything = [TopicPartition(topic, number) for topic in counts for number in range(counts[topic])]
    members = {
        name: ConsumerSubscription(
            topics, claims.draw(st.lists(st.sampled_from(everything), unique=True, max_size=5)), 1
        )
        for name, topics in wishes.items()
    }
    assigned = assign_cooperative_sticky(members, counts)
    for name, targets in assigned.items():
        for target in targets:
            holders = {m for m, s in members.items() if target in s.owned and target.topic in s.topics}
            assert not holders or name in holders


def test_of_two_claims_the_later_generation_is_believed() -> None:
    target = TopicPartition("a", 0)
    members = {"m1": ConsumerSubscription(["a"], [target], 5), "m2": ConsumerSubscription(["a"], [target], 4)}
    assert assign_cooperative_sticky(members, {"a": 1}) == {"m1": [target], "m2": []}


@given(targets=st.lists(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 50)), unique=True))
def test_subscriptions_and_assignments_survive_encoding(targets: list[TopicPartition]) -> None:
    assert decode_assignment(encode_assignment(targets)) == sorted(targets)
    result = decode_subscription(encode_subscription(["a", "b"], targets, 7))
    assert (result.topics, sorted(result.owned), result.generation) == (["a", "b"], sorted(targets), 7)
