"""Tokens are read as they were written, and scopes allow what they say and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.tokens import (
    VERBS,
    InvalidScope,
    Scope,
    hash_secret,
    needed_scope,
    parse_scope,
    parse_token,
    write_token,
)

TOPICS = st.text("abc._-", min_size=1, max_size=12)


def test_a_token_is_read_as_it_was_written() -> None:
    assert parse_token(write_token("0a1b", "x-_y")) == ("0a1b", "x-_y")


@pytest.mark.parametrize(
    "text", ["", "hr_", "hr_a", "hr_a_", "hr__b", "xx_a_b", "hr_a_b c", "hr_a-b_c", "hr_a_b\n", "hr_a_" + "b" * 300]
)
def test_what_is_no_token_is_none(text: str) -> None:
    assert parse_token(text) is None


def test_hashes_are_of_sha_256() -> None:
    assert hash_secret("abc").hex().startswith("ba7816bf8f01cfea")


@pytest.mark.parametrize("text", ["publish:orders", "consume:orders.*", "read:*", "manage:a_b-c.d"])
def test_a_scope_is_read_as_it_is_written(text: str) -> None:
    assert str(parse_scope(text)) == text


@pytest.mark.parametrize(
    "text", ["", "publish", "publish:", "write:orders", ":orders", "publish:a b", "read:*.x", "read:a**", "read:ä"]
)
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(InvalidScope):
        parse_scope(text)


def test_a_scope_too_long_is_refused() -> None:
    parse_scope("read:" + "a" * 249 + "*")
    with pytest.raises(InvalidScope):
        parse_scope("read:" + "a" * 251)


@pytest.mark.parametrize(
    ("scope", "verb", "topic", "allowed"),
    [
        ("publish:orders", "publish", "orders", True),
        ("publish:orders", "publish", "orders.eu", False),
        ("publish:orders", "consume", "orders", False),
        ("publish:orders", "read", "orders", False),
        ("consume:orders", "read", "orders", False),
        ("consume:orders.*", "consume", "orders.eu", True),
        ("consume:orders.*", "consume", "orders", False),
        ("manage:orders", "publish", "orders", True),
        ("manage:orders", "read", "other", False),
        ("read:*", "read", "orders", True),
        ("read:*", "read", None, True),
        ("read:orders", "read", None, False),
        ("manage:*", "read", None, True),
        ("manage:orders*", "manage", None, False),
        ("read:*", "read", "__consumer_offsets", False),
        ("read:*", "read", "__acks.orders", False),
        ("read:__acks.orders", "read", "__acks.orders", False),
        ("manage:*", "read", "__acks.orders", True),
        ("manage:orders", "read", "__acks.orders", False),
    ],
)
def test_a_scope_allows_what_it_says(scope: str, verb: str, topic: str | None, allowed: bool) -> None:
    assert parse_scope(scope).allows(verb, topic) is allowed


@given(st.sampled_from(VERBS), st.none() | TOPICS | st.just("__acks.a"))
def test_the_scope_that_is_named_as_missing_is_enough(verb: str, topic: str | None) -> None:
    assert needed_scope(verb, topic).allows(verb, topic)


@given(st.sampled_from(VERBS), st.sampled_from(VERBS), TOPICS, TOPICS, st.booleans())
def test_nothing_but_the_own_verb_and_manage_allow_anything(
    verb: str, requested: str, name: str, topic: str, is_prefix: bool
) -> None:
    scope = Scope(verb, name + "*" * is_prefix)
    if scope.allows(requested, topic):
        assert verb in (requested, "manage")
        assert topic.startswith(name) if is_prefix else topic == name
