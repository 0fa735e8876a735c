"""Durations and times are read exactly, or refused with a sentence."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.durations import (
    LEVELS,
    TIME_MS_MAX,
    InvalidDuration,
    InvalidTime,
    parse_duration,
    parse_time,
)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("0s", 0),
        ("1500ms", 1500),
        ("10s", 10_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1h30m", 5_400_000),
        ("1s500ms", 1500),
        ("PT0.5S", 500),
        ("PT1,25M", 75_000),
        ("PT1H30M", 5_400_000),
        ("P1DT12H", 129_600_000),
        ("P2W", 1_209_600_000),
        ("level1", 1000),
        ("level5", 60_000),
        ("level16", 7_200_000),
    ],
)
def test_a_duration_is_read(text: str, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    "text",
    ["", "10", "s", "-5s", "1.5s", "10 s", "10sec", "1H", "P", "PT", "P1", "P1Y", "P1M", "PT5", "PT1S1H", "level0",
     "level17", "level", "1s\n", "٣s", "9" * 16 + "s", "999999999d"],
)  # fmt: skip
def test_whatever_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidDuration) as refused:
        parse_duration(text)
    assert refused.value.message


def test_the_levels_are_those_of_the_seeds() -> None:
    assert ", ".join(LEVELS) == "1s, 5s, 10s, 30s, 1m, 2m, 3m, 4m, 6m, 8m, 9m, 10m, 20m, 30m, 1h, 2h"
    named = [parse_duration(f"level{number}") for number in range(1, len(LEVELS) + 1)]
    assert named == [parse_duration(level) for level in LEVELS] == sorted(named)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T01:00:00+01:00", 0),
        ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
        ("2023-11-14T22:13:20.123999Z", 1_700_000_000_123),
        ("9999-12-31T23:59:59.999Z", TIME_MS_MAX),
        (str(TIME_MS_MAX), TIME_MS_MAX),
    ],
)
def test_a_time_is_read(text: str, time_ms: int) -> None:
    assert parse_time(text) == time_ms


@pytest.mark.parametrize(
    "text",
    ["", "-1", "tomorrow", "2023-11-14T22:13:20", "2023-11-14", "1969-12-31T23:59:59Z", "2023-13-01T00:00:00Z",
     "1" * 15 + "0", str(TIME_MS_MAX + 1), "10000-01-01T00:00:00Z", "1_000", "9999-12-31T23:59:59.999-01:00"],
)  # fmt: skip
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidTime) as refused:
        parse_time(text)
    assert refused.value.message


@given(st.text(max_size=20))
def test_no_text_does_anything_but_be_read_or_refused(text: str) -> None:
    for parse, refusal in ((parse_duration, InvalidDuration), (parse_time, InvalidTime)):
        with suppress(refusal):
            assert parse(text) >= 0
