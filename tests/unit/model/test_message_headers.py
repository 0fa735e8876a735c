"""What the headers of a message say, and that no value of them can be in anybody's way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.message_headers import (
    DEAD_OFFSET,
    EXPIRES_AT,
    PRIORITY,
    PRIORITY_DEFAULT,
    REDRIVEN,
    TAGS,
    TTL,
    DeadLetterOrigin,
    InvalidHeader,
    check_priority,
    dead_letter_origin,
    expires_ms_of,
    header_value,
    priority_of,
    redrive_count_of,
    tags_of,
    with_dead_letter_headers,
    with_headers,
    without,
)

OURS = [PRIORITY, TAGS, TTL, EXPIRES_AT, REDRIVEN, DEAD_OFFSET, "headrace-dead-topic", "headrace-dead-partition"]
HEADERS = st.lists(
    st.tuples(st.sampled_from(OURS) | st.text(), st.none() | st.binary() | st.integers().map(lambda n: b"%d" % n))
)
DEATH = DeadLetterOrigin("boom", 5, "workers", "orders", 3, 2**40, 1_700_000_000_000)


def test_a_header_that_is_given_twice_counts_as_it_was_given_last() -> None:
    assert header_value([("a", b"1"), ("b", b"2"), ("a", b"3")], "a") == b"3"
    assert header_value([("a", b"1"), ("a", None)], "a") is None


@pytest.mark.parametrize(("value", "priority"), [(b"0", 0), (b"9", 9)])
def test_a_priority_is_one_digit(value: bytes, priority: int) -> None:
    assert priority_of([(PRIORITY, value)]) == priority


@pytest.mark.parametrize("value", [None, b"", b"10", b"-1", b"high", b"\xff", "٣".encode(), b" 3"])
def test_a_priority_that_makes_no_sense_is_the_default(value: bytes | None) -> None:
    assert priority_of([(PRIORITY, value)]) == PRIORITY_DEFAULT == 4
    assert priority_of([]) == PRIORITY_DEFAULT


def test_what_a_person_gives_is_refused_with_the_rule() -> None:
    with pytest.raises(InvalidHeader, match="a digit from 0 to 9, not '10'"):
        check_priority("10")


def test_a_message_expires_at_the_earlier_of_two_times() -> None:
    assert expires_ms_of([(EXPIRES_AT, b"5000"), (TTL, b"3s")], 1000) == 4000
    assert expires_ms_of([(EXPIRES_AT, b"1970-01-01T00:00:02Z"), (TTL, b"3s")], 1000) == 2000


def test_a_time_that_makes_no_sense_is_none() -> None:
    assert expires_ms_of([(EXPIRES_AT, b"soon"), (TTL, b"long")], 1000) is None
    assert expires_ms_of([(EXPIRES_AT, b"soon"), (TTL, b"3s")], 1000) == 4000
    assert expires_ms_of([], 1000) is None


def test_tags_are_separated_by_commas() -> None:
    assert tags_of([(TAGS, b" a, b ,,a")]) == {"a", "b"}
    assert tags_of([(TAGS, None)]) == tags_of([]) == frozenset()


def test_a_dead_letter_says_where_it_comes_from() -> None:
    headers = with_dead_letter_headers([("type", b"order")], DEATH)
    assert headers[0] == ("type", b"order")
    assert dead_letter_origin(headers) == DEATH


def test_who_dies_again_tells_of_the_last_death_only() -> None:
    again = DeadLetterOrigin("worse", 6, "others", "orders", 3, 7, 1)
    headers = with_dead_letter_headers(with_dead_letter_headers([], DEATH), again)
    assert dead_letter_origin(headers) == again
    assert len({name for name, _ in headers}) == len(headers)


def test_a_message_that_is_no_dead_letter_has_no_death() -> None:
    assert dead_letter_origin([]) is None
    assert dead_letter_origin(without(with_dead_letter_headers([], DEATH), [DEAD_OFFSET])) is None


def test_any_text_can_be_a_reason() -> None:
    reason = "caf\xe9 \ud800"
    death = dead_letter_origin(with_dead_letter_headers([], DeadLetterOrigin(reason, 1, "s", "t", 0, 0, 0)))
    assert death is not None
    assert death.reason == "caf\xe9 ?"


def test_a_header_replaces_the_one_of_its_name() -> None:
    assert with_headers([("a", b"1"), ("b", b"2")], {"a": "3"}) == [("b", b"2"), ("a", b"3")]


@given(HEADERS)
def test_no_headers_are_in_the_way_of_delivery(headers: list[tuple[str, bytes | None]]) -> None:
    assert 0 <= priority_of(headers) <= 9
    assert redrive_count_of(headers) >= 0
    assert all(tags_of(headers))
    dead_letter_origin(headers)
    expires = expires_ms_of(headers, 1000)
    assert expires is None or expires >= 0
