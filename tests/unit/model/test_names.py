"""Which names are accepted, and what is said about the others."""

from __future__ import annotations

import base64
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import InvalidGroupId, InvalidTopic
from headrace.model.ids import id_to_text
from headrace.model.names import check_group_id, check_topic_name, is_internal


@pytest.mark.parametrize("name", ["orders", "a", "A.b_c-9", "...", "__consumer_offsets", "x" * 249])
def test_names_of_kafkas_alphabet_are_accepted(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (".", "not allowed"),
        ("..", "not allowed"),
        ("x" * 250, "longer than the max allowed length 249"),
        ("a b", "ASCII alphanumerics"),
        ("a/b", "ASCII alphanumerics"),
        ("größe", "ASCII alphanumerics"),
        ("a\n", "ASCII alphanumerics"),
        ("a\x00", "ASCII alphanumerics"),
    ],
)
def test_other_names_are_refused_with_the_rule_they_break(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopic, match=reason):
        check_topic_name(name)


def test_a_group_id_is_any_text_but_none() -> None:
    assert check_group_id("größe / 1") == "größe / 1"
    for nothing in ("", None):
        with pytest.raises(InvalidGroupId, match=r"group\.id"):
            check_group_id(nothing)


def test_the_offsets_topic_is_internal_and_others_are_not() -> None:
    assert is_internal("__consumer_offsets")
    assert not is_internal("__mine")


@given(st.uuids())
def test_an_id_survives_its_text_form(value: uuid.UUID) -> None:
    text = id_to_text(value)
    assert len(text) == 22
    assert base64.urlsafe_b64decode(text + "==") == value.bytes
