"""Text of unknown origin is harmless when it is shown."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.safe_text import escaped, escaped_json, shortened


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \u00e4 \u6f22 \U0001f600", "plain \u00e4 \u6f22 \U0001f600"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("a\u202eb\u2028", "a\\u202eb\\u2028"),
        ("\udc80", "\\udc80"),
        ("\U0001f468\u200d\U0001f469", "\U0001f468\u200d\U0001f469"),
    ],
)
def test_control_characters_are_escaped_and_nothing_else(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_what_is_to_be_kept_is_kept() -> None:
    assert escaped("a\tb\x1b\n", keep="\n\t") == "a\tb\\x1b\n"


@given(st.text())
def test_escaped_json_means_the_same_and_controls_no_terminal(text: str) -> None:
    document = escaped_json(json.dumps({"text": text}, ensure_ascii=False))
    assert json.loads(document) == {"text": text}
    assert escaped(document.encode(errors="ignore").decode()) == document.encode(errors="ignore").decode()


def test_long_text_is_cut() -> None:
    assert shortened("a" * 100) == "a" * 100
    assert shortened("a" * 1_000_000) == "a" * 100 + "..."
