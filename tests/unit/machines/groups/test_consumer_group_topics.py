"""The topics of a subscription, and the detection of their changes."""

from __future__ import annotations

from uuid import UUID

import pytest

from headrace.machines.groups.group_topics import TopicImage, TopicsImage

TOPICS = {"orders": 3, "orders-eu": 1, "payments": 2, "__consumer_offsets": 8}
VIEW = TopicsImage({name: TopicImage(UUID(int=at), size) for at, (name, size) in enumerate(TOPICS.items(), 1)})


@pytest.mark.parametrize(
    ("regex", "names"),
    [
        ("orders", {"orders"}),
        ("^orders.*", {"orders", "orders-eu"}),
        ("orders|payments", {"orders", "payments"}),
        ("^or|^pay", set()),
        (".*", {"orders", "orders-eu", "payments", "__consumer_offsets"}),
        (r"[a-z(*+]+-(eu|us)", {"orders-eu"}),
        (r"(orders)*(-eu){0,1}?", {"orders", "orders-eu"}),
        ("(?i)ORDERS", {"orders"}),
        ("", set()),
    ],
)
def test_a_regular_expression_means_whole_names(regex: str, names: set[str]) -> None:
    assert VIEW.matching(regex) == names


def test_an_invalid_pattern_matches_nothing() -> None:
    assert VIEW.matching("(?=a)a") == frozenset()


def test_the_hash_changes_when_a_subscribed_topic_grows_or_is_deleted_or_recreated() -> None:
    names = {"orders", "missing"}
    now = VIEW.hash_of(names)
    assert TopicsImage(dict(VIEW.topics)).hash_of(names) == now
    assert TopicsImage({**VIEW.topics, "payments": TopicImage(UUID(int=3), 9)}).hash_of(names) == now
    for change in (
        {"orders": TopicImage(UUID(int=1), 4)},
        {"orders": TopicImage(UUID(int=9), 3)},
        {"missing": TopicImage(UUID(int=8), 1)},
    ):
        assert TopicsImage({**VIEW.topics, **change}).hash_of(names) != now
    assert VIEW.hash_of({"missing"}) == VIEW.hash_of(set()) != now
