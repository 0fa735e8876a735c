"""Durations are parsed and times are formatted."""

from __future__ import annotations

import pytest

from headrace.cli.options import parse_duration
from headrace.cli.output import local_time


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("500ms", 500), ("90s", 90_000), ("15m", 900_000), ("2h", 7_200_000), ("7d", 604_800_000), ("1h30m", 5_400_000)],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "15", "m", "-5m", "1.5h", "5 m", "5m soon", "٣m"])
def test_invalid_durations_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


def test_missing_and_out_of_range_times_are_formatted() -> None:
    assert local_time(-1) is None
    shown = local_time(1_700_000_000_123)
    assert shown is not None
    assert ":13:20.123" in shown
    assert local_time(1 << 62) == f"{1 << 62} ms"
