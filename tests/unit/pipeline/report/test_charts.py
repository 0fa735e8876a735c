"""Charts are well-formed SVG for any numbers and names, with round axes and tooltips."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.report.charts import (
    HEIGHT,
    WIDTH,
    Bar,
    Series,
    bar_chart,
    line_chart,
    round_ticks,
    shortened,
    shown_byte_rate,
    shown_bytes,
    shown_count,
    shown_ms,
    shown_rate,
    shown_time,
)

NOON_MS = 1_763_294_400_000  # 2025-11-16 12:00 UTC
HOSTILE = "<script>alert('&\"')</script>"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts(root: ElementTree.Element, kind: str) -> list[str]:
    return [element.text or "" for element in root.iter("text") if element.get("class") == kind]


def titles(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter("title")]


def times(count: int) -> list[int]:
    return [NOON_MS + 60_000 * number for number in range(count)]


def test_a_line_chart_has_title_axes_legend_lines_and_tooltips() -> None:
    series = [Series("p50", [1.0, 2.0, 3.0]), Series("p99", [10.0, 20.0, 40.0], colour=1)]
    root = parsed(line_chart("Latency", times(3), series, shown_ms))
    assert texts(root, "title") == ["Latency"]
    assert root.get("aria-label") == "Latency"
    assert texts(root, "label") == ["p50", "p99"]
    assert texts(root, "tick") == ["0 ms", "10 ms", "20 ms", "30 ms", "40 ms", "12:00:00", "12:01:00", "12:02:00"]
    lines = list(root.iter("polyline"))
    assert [line.get("class") for line in lines] == ["line s0", "line s1"]
    assert len((lines[0].get("points") or "").split()) == 3
    assert "2025-11-16 12:01:00 UTC\np50: 2 ms\np99: 20 ms" in titles(root)


def test_the_highest_value_is_at_the_top_and_zero_at_the_bottom() -> None:
    [line] = parsed(line_chart("x", times(2), [Series("x", [0.0, 50.0])], shown_count)).iter("polyline")
    (left, low), (right, high) = (tuple(map(float, point.split(","))) for point in (line.get("points") or "").split())
    assert low == HEIGHT - 34
    assert high == 58
    assert left < right <= WIDTH


def test_one_series_has_no_legend() -> None:
    assert texts(parsed(line_chart("x", times(2), [Series("x", [1, 2])], shown_count)), "label") == []


def test_a_line_is_interrupted_at_missing_values_and_one_value_is_a_dot() -> None:
    root = parsed(line_chart("x", times(5), [Series("x", [1.0, 2.0, None, 3.0, None])], shown_count))
    assert len(list(root.iter("polyline"))) == 1
    assert len(list(root.iter("circle"))) == 1
    assert any(text.endswith("x: -") for text in titles(root))


def test_one_window_is_shown_in_the_middle() -> None:
    [dot] = parsed(line_chart("x", times(1), [Series("x", [7.0])], shown_count)).iter("circle")
    assert 0 < float(dot.get("cx") or 0) < WIDTH


@pytest.mark.parametrize("values", [[], [None, None]])
def test_an_empty_chart_says_so(values: list[float | None]) -> None:
    root = parsed(line_chart("x", times(len(values)), [Series("x", values)], shown_count))
    assert texts(root, "empty") == ["nothing to show"]
    assert texts(parsed(bar_chart("x", [], shown_count)), "empty") == ["nothing to show"]


def test_only_zeros_are_a_flat_line() -> None:
    root = parsed(line_chart("x", times(3), [Series("x", [0, 0, 0])], shown_count))
    assert texts(root, "tick")[:2] == ["0", "1"]


def test_bars_are_proportional_to_their_values_and_labelled() -> None:
    root = parsed(bar_chart("Keys", [Bar("c-1", 200), Bar("c-2", 50), Bar("none", 0)], shown_count))
    widths = [float(rect.get("width") or 0) for rect in root.iter("rect")]
    assert widths[1] == pytest.approx(widths[0] / 4, abs=0.1)
    assert widths[2] == 0
    assert titles(root) == ["c-1: 200", "c-2: 50", "none: 0"]
    assert texts(root, "label") == ["c-1", "200", "c-2", "50", "none", "0"]


def test_names_are_escaped() -> None:
    line = line_chart(HOSTILE, times(2), [Series(HOSTILE, [1, 2]), Series("b", [1, 2])], shown_count)
    bar = bar_chart(HOSTILE, [Bar(HOSTILE, 1)], shown_count)
    for svg in (line, bar):
        assert "<script" not in svg
        assert parsed(svg).get("aria-label") == HOSTILE
    assert any(HOSTILE in text for text in titles(parsed(bar)))


@given(st.lists(st.none() | st.floats(0, 1e15), max_size=40), st.text(max_size=40))
def test_any_numbers_make_a_chart(values: list[float | None], name: str) -> None:
    printable = "".join(one for one in name if one.isprintable())
    svg = line_chart(printable, times(len(values)), [Series(printable, values)], shown_bytes)
    for element in parsed(svg).iter("polyline"):
        for point in (element.get("points") or "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT


@given(st.floats(1e-9, 1e18))
def test_ticks_are_few_and_reach_the_highest_value(highest: float) -> None:
    ticks = round_ticks(highest)
    assert ticks[0] == 0
    assert ticks[-1] >= highest * (1 - 1e-6)
    assert 2 <= len(ticks) <= 8


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (shown_count(0), "0"),
        (shown_count(999), "999"),
        (shown_count(1000), "1k"),
        (shown_count(1_234_567), "1.23M"),
        (shown_bytes(1536), "1.54 kB"),
        (shown_rate(0.25), "0.25/s"),
        (shown_byte_rate(2_000_000), "2 MB/s"),
        (shown_ms(12), "12 ms"),
        (shown_ms(1500), "1.5 s"),
        (shown_ms(90_000), "1.5 min"),
        (shown_ms(7_200_000), "2 h"),
        (shown_time(NOON_MS), "12:00:00"),
        (shown_time(NOON_MS, 3_600_000), "12:00"),
        (shown_time(NOON_MS, 86_400_000), "11-16 12:00"),
        (shown_time(NOON_MS, 30 * 86_400_000), "11-16"),
        (shortened("a" * 40), "a" * 25 + "…"),
    ],
)
def test_numbers_are_formatted_with_units(shown: str, text: str) -> None:
    assert shown == text
