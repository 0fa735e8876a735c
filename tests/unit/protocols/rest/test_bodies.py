"""Durations, times and values in REST requests and responses."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from headrace.http.problems import Problem
from headrace.protocols.rest.bodies import (
    duration_ms,
    header_fields,
    integer_parameter,
    is_json,
    rfc3339_time,
    time_ms,
    value_fields,
)


@pytest.mark.parametrize(
    ("value", "expected"), [("5s", 5000), ("5", 5000), (5, 5000), ("0.25", 250), (1.5, 1500), ("PT90S", 90_000), (0, 0)]
)
def test_a_duration_is_a_string_or_a_number_of_seconds(value: str | float, expected: int) -> None:
    assert duration_ms(value, "wait") == expected


@pytest.mark.parametrize("value", ["", "-1", "nan", "inf", "1e300", "5 s", "five", float("nan"), -0.5])
def test_an_invalid_duration_is_rejected_with_its_name(value: str | float) -> None:
    with pytest.raises(Problem) as raised:
        duration_ms(value, "wait")
    assert (raised.value.status, raised.value.code) == (422, "invalid_parameter")
    assert raised.value.message.startswith("wait: ")


def test_times_are_rfc_3339_in_utc_with_milliseconds() -> None:
    assert rfc3339_time(1_700_000_000_007) == "2023-11-14T22:13:20.007Z"
    assert time_ms(rfc3339_time(1_700_000_000_007), "at") == 1_700_000_000_007
    assert rfc3339_time(0) == "1970-01-01T00:00:00.000Z"
    with pytest.raises(Problem):
        time_ms("2023-11-14", "at")


@pytest.mark.parametrize("value", ["", "+1", "1_0", "0", "11", "9" * 30, "\u0661"])
def test_an_integer_parameter_out_of_range_is_rejected(value: str) -> None:
    with pytest.raises(Problem):
        integer_parameter({"limit": value}, "limit", 5, 1, 10)


def test_an_omitted_integer_parameter_has_its_default() -> None:
    assert integer_parameter({}, "limit", 5, 1, 10) == 5
    assert integer_parameter({"limit": "10"}, "limit", 5, 1, 10) == 10


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/cloudevents+json", True),
        ("text/json", False),
        ("application/jsonp", False),
        ("", False),
    ],
)
def test_json_is_recognized_by_its_media_type(content_type: str, expected: bool) -> None:
    assert is_json(content_type) is expected


def test_a_text_value_that_is_not_utf_8_is_base64() -> None:
    assert value_fields(b"\xff", [("content-type", b"text/plain")]) == (UNSET, "/w==")
    assert value_fields(b"\xff", [("content-type", b"application/json")]) == (UNSET, "/w==")
    assert value_fields(b"1", [("content-type", b"text/plain")]) == ("1", UNSET)
    assert value_fields(None, []) == (UNSET, UNSET)


def test_headers_that_are_not_utf_8_are_shown() -> None:
    assert header_fields([("a", b"\xff"), ("b\udcff", None), ("a", b"2")]) == {"a": "2", "b\ufffd": None}
