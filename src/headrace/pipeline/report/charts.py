"""Line and bar charts as SVG, to be embedded in a page. Pure.

- A chart has a title, axes with round numbers, and a legend if there is more than one series. It needs no script: exact
  values are shown on hover (`<title>`) and in the table next to the chart.
- Colours are classes (`s0` to `s3`), which the page defines for light and dark mode.
- All text from outside is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

import msgspec

WIDTH: Final = 720
HEIGHT: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 58, 34
_BAR_HEIGHT, _BAR_LEFT = 24, 190
_TICKS = 5
_LABEL_MAX = 26
_DAY_MS = 86_400_000

Shown = Callable[[float], str]


class Series(msgspec.Struct, frozen=True):
    """A line, interrupted where a value is None. `colour`: the number of its class."""

    name: str
    values: Sequence[float | None]
    colour: int = 0


class Bar(msgspec.Struct, frozen=True):
    name: str
    value: float


def line_chart(title: str, times_ms: Sequence[int], series: Sequence[Series], shown: Shown) -> str:
    """A chart of all series over the same times, in UTC; `shown` formats a value with its unit."""
    assert all(len(one.values) == len(times_ms) for one in series)
    values = [value for one in series for value in one.values if value is not None]
    ticks = round_ticks(max(values, default=0.0))
    parts = [*_head(title, HEIGHT), *_legend(series if len(series) > 1 else ())]
    if not times_ms or not values:
        return "".join([*parts, _text(WIDTH / 2, HEIGHT / 2, "nothing to show", "empty", "middle"), "</svg>"])
    parts += _value_axis(ticks, shown)
    parts += _time_axis(times_ms)
    xs = [_x(times_ms, index) for index in range(len(times_ms))]
    for one in series:
        ys = [None if value is None else _y(value, ticks[-1]) for value in one.values]
        parts += _line(xs, ys, f"s{one.colour}")
    parts += _hover(times_ms, xs, series, shown)
    return "".join([*parts, "</svg>"])


def bar_chart(title: str, bars: Sequence[Bar], shown: Shown) -> str:
    """A chart of horizontal bars, in the given order."""
    height = _TOP - 12 + max(len(bars), 1) * _BAR_HEIGHT + 10
    parts = _head(title, height)
    if not bars:
        return "".join([*parts, _text(WIDTH / 2, height - 16, "nothing to show", "empty", "middle"), "</svg>"])
    most = max(bar.value for bar in bars) or 1.0
    room = WIDTH - _BAR_LEFT - 90
    for number, bar in enumerate(bars):
        y = _TOP - 12 + number * _BAR_HEIGHT
        width = max(bar.value, 0.0) / most * room
        parts.append(f"<g><title>{escape(bar.name)}: {escape(shown(bar.value))}</title>")
        parts.append(_text(_BAR_LEFT - 8, y + 14, shortened(bar.name), "label", "end"))
        parts.append(
            f'<rect class="bar s0" x="{_BAR_LEFT}" y="{y + 2}" width="{width:.1f}" height="{_BAR_HEIGHT - 8}" rx="2"/>'
        )
        parts.append(_text(_BAR_LEFT + width + 6, y + 14, shown(bar.value), "label"))
        parts.append("</g>")
    return "".join([*parts, "</svg>"])


def shown_count(value: float) -> str:
    """1234567 as 1.23M."""
    return _scaled(value, ("", "k", "M", "G", "T"))


def shown_bytes(value: float) -> str:
    return _scaled(value, (" B", " kB", " MB", " GB", " TB"))


def shown_rate(value: float) -> str:
    return f"{shown_count(value)}/s"


def shown_byte_rate(value: float) -> str:
    return f"{shown_bytes(value)}/s"


def shown_ms(value: float) -> str:
    """A duration in its largest suitable unit."""
    for unit, name in ((_DAY_MS, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if value >= unit:
            return f"{_plain(value / unit)} {name}"
    return f"{_plain(value)} ms"


def shown_time(time_ms: int, span_ms: int = 0) -> str:
    """A time with the precision that a chart over this span needs."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    if span_ms > 3 * _DAY_MS:
        return f"{moment:%m-%d}"
    if span_ms > 12 * 3_600_000:
        return f"{moment:%m-%d %H:%M}"
    return f"{moment:%H:%M}" if span_ms > 10 * 60_000 else f"{moment:%H:%M:%S}"


def shortened(text: str) -> str:
    return text if len(text) <= _LABEL_MAX else text[: _LABEL_MAX - 1] + "…"


def round_ticks(highest: float) -> list[float]:
    """Ticks from zero to a round number at or above the highest value, in steps of 1, 2 or 5."""
    if highest <= 0 or not math.isfinite(highest):
        return [0.0, 1.0]
    rough = highest / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= rough * 0.999)
    count = math.ceil(highest / step - 1e-9)
    return [step * number for number in range(count + 1)]


def _scaled(value: float, units: Sequence[str]) -> str:
    number = 0
    while abs(value) >= 999.5 and number + 1 < len(units):
        value /= 1000
        number += 1
    return _plain(value) + units[number]


def _plain(value: float) -> str:
    text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _head(title: str, height: float) -> list[str]:
    return [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">',
        _text(0, 16, title, "title"),
    ]


def _legend(series: Sequence[Series]) -> Iterator[str]:
    x = _LEFT
    for one in series:
        yield f"<g><title>{escape(one.name)}</title>"
        yield f'<line class="line s{one.colour}" x1="{x}" y1="38" x2="{x + 18}" y2="38"/>'
        yield _text(x + 24, 42, shortened(one.name), "label") + "</g>"
        x += 24 + 7 * min(len(one.name), _LABEL_MAX) + 18


def _value_axis(ticks: Sequence[float], shown: Shown) -> Iterator[str]:
    for tick in ticks:
        y = _y(tick, ticks[-1])
        kind = "axis" if not tick else "grid"
        yield f'<line class="{kind}" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>'
        yield _text(_LEFT - 8, y + 4, shown(tick), "tick", "end")


def _time_axis(times_ms: Sequence[int]) -> Iterator[str]:
    span = times_ms[-1] - times_ms[0]
    count = min(len(times_ms), 6)
    chosen = {round(number * (len(times_ms) - 1) / max(count - 1, 1)) for number in range(count)}
    for index in sorted(chosen):
        x = _x(times_ms, index)
        anchor = "end" if index and index == len(times_ms) - 1 else "middle"
        yield f'<line class="axis" x1="{x:.1f}" y1="{HEIGHT - _BOTTOM}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM + 4}"/>'
        yield _text(x, HEIGHT - _BOTTOM + 18, shown_time(times_ms[index], span), "tick", anchor)


def _line(xs: Sequence[float], ys: Sequence[float | None], colour: str) -> Iterator[str]:
    """A polyline for each run of values, and a dot for a run of one value."""
    run: list[str] = []
    for x, y in [*zip(xs, ys, strict=True), (0.0, None)]:
        if y is not None:
            run.append(f"{x:.1f},{y:.1f}")
            continue
        if len(run) > 1:
            yield f'<polyline class="line {colour}" points="{" ".join(run)}"/>'
        elif run:
            at_x, at_y = run[0].split(",")
            yield f'<circle class="dot {colour}" cx="{at_x}" cy="{at_y}" r="3"/>'
        run = []


def _hover(times_ms: Sequence[int], xs: Sequence[float], series: Sequence[Series], shown: Shown) -> Iterator[str]:
    """An invisible column per time, whose tooltip shows the values."""
    width = (WIDTH - _LEFT - _RIGHT) / max(len(xs), 1)
    for index, (time_ms, x) in enumerate(zip(times_ms, xs, strict=True)):
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
        lines = [f"{moment:%Y-%m-%d %H:%M:%S} UTC"]
        for one in series:
            value = one.values[index]
            lines.append(f"{one.name}: {'-' if value is None else shown(value)}")
        yield (
            f'<rect class="hover" x="{x - width / 2:.1f}" y="{_TOP}" width="{width:.1f}" '
            f'height="{HEIGHT - _TOP - _BOTTOM}"><title>{escape(chr(10).join(lines))}</title></rect>'
        )


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _x(times_ms: Sequence[int], index: int) -> float:
    span = times_ms[-1] - times_ms[0]
    share = (times_ms[index] - times_ms[0]) / span if span else 0.5
    return _LEFT + share * (WIDTH - _LEFT - _RIGHT)


def _y(value: float, highest: float) -> float:
    return HEIGHT - _BOTTOM - value / highest * (HEIGHT - _TOP - _BOTTOM)
