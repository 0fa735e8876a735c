"""Patterns from outside: what RE2 knows, and nothing that could keep the broker busy."""

from __future__ import annotations

import pytest

from headrace.model.errors import InvalidRegularExpression
from headrace.model.names import PATTERN_LENGTH_MAX, compiled


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "[",
        "a**",
        "*",
        r"(a)\1",
        "(?=a)a",
        "(?!a)b",
        "(?<=a)b",
        "(?P<x>a)(?P=x)",
        "a{2000}",
        "((a{100}){100}){100}",
        "a" * (PATTERN_LENGTH_MAX + 1),
    ],
)
def test_what_cannot_be_used_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression):
        compiled(pattern)


def test_a_pattern_means_the_whole_text() -> None:
    assert compiled("(?i)ORD.*").fullmatch("orders")
    assert not compiled("ord").fullmatch("orders")


@pytest.mark.parametrize("pattern", ["(a+)+b", ".*a.*a.*a.*a.*a.*a.*a.*a.*b"])
def test_no_pattern_takes_long(pattern: str) -> None:
    """With Python's own engine these would not end in our lifetime."""
    assert not compiled(pattern).fullmatch("a" * 249)
