"""Plot the results as SVG: one panel per plotted metric of a workload, with a bar per peer or lines over an x axis.

A bar ends at the median; the thin line through its end spans minimum to maximum. The SVG is written without a plot
library, which would be the project's largest dependency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import log10

from bench.figures import Metric, Sample, Spread, spread
from bench.schedule import WorkloadResult

_PANEL_WIDTH = 400
_PANEL_HEIGHT = 180
_MARGIN = 20
_COLUMNS = 3
_LABEL_WIDTH = 120
_VALUE_WIDTH = 70
_INK, _FAINT = "#24292f", "#d0d7de"
_COLOURS = {
    "headrace": "#0b6e99",
    "headrace-cache": "#5fb0d3",
    "headrace-prefetch": "#3c8fb8",
    "headrace-gather": "#5fb0d3",
    "headrace-3": "#084c6b",
    "kafka-fsync": "#c2571a",
    "kafka": "#e8a87c",
    "kafka-3-fsync": "#c2571a",
    "kafka-3": "#e8a87c",
    "redis-fsync": "#8c2f39",
    "redis": "#c97b84",
    "nats-fsync": "#4f772d",
    "nats": "#90a955",
    "rabbitmq": "#7a5195",
    "headrace-rest": "#0b6e99",
    "uvicorn-echo": "#a0a0a0",
    "rabbitmq-http": "#7a5195",
    "headrace-spark": "#0b6e99",
    "parquet-spark": "#a0a0a0",
    "kafka-spark": "#e8a87c",
    "rate-spark": "#a0a0a0",
}
_OTHER_COLOUR = "#6e7781"  # another commit of Headrace


@dataclass(slots=True)
class _Canvas:
    """SVG elements with the panel's corner as their origin."""

    elements: list[str] = field(default_factory=list)
    x: float = 0
    y: float = 0

    def text(
        self, x: float, y: float, words: str, *, size: int = 11, anchor: str = "start", bold: bool = False
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{self.x + x:.1f}" y="{self.y + y:.1f}" font-size="{size}" text-anchor="{anchor}"'
        self.elements.append(f'<text {place}{weight} fill="{_INK}">{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> None:
        ends = f'x1="{self.x + x1:.1f}" y1="{self.y + y1:.1f}" x2="{self.x + x2:.1f}" y2="{self.y + y2:.1f}"'
        self.elements.append(f'<line {ends} stroke="{colour}" stroke-width="{width}"/>')

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        place = f'x="{self.x + x:.1f}" y="{self.y + y:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}"'
        self.elements.append(f'<rect {place} fill="{colour}"/>')

    def dot(self, x: float, y: float, colour: str) -> None:
        self.elements.append(f'<circle cx="{self.x + x:.1f}" cy="{self.y + y:.1f}" r="3" fill="{colour}"/>')


def draw(results: Sequence[WorkloadResult], caption: str) -> str:
    panels = [(result, metric) for result in results if result.samples for metric in result.workload.plotted]
    columns = max(1, min(_COLUMNS, len(panels)))
    rows = -(-len(panels) // columns)
    width = columns * (_PANEL_WIDTH + _MARGIN) + _MARGIN
    height = rows * (_PANEL_HEIGHT + _MARGIN) + 2 * _MARGIN + 10
    canvas = _Canvas()
    canvas.text(_MARGIN, _MARGIN, caption, size=12)
    for number, (result, metric) in enumerate(panels):
        canvas.x = _MARGIN + number % columns * (_PANEL_WIDTH + _MARGIN)
        canvas.y = 2 * _MARGIN + number // columns * (_PANEL_HEIGHT + _MARGIN)
        canvas.text(0, 14, f"{result.workload.name}: {metric.title}", size=13, bold=True)
        canvas.text(_PANEL_WIDTH, 14, f"{metric.better} is better", size=10, anchor="end")
        (_bars if result.workload.points == (None,) else _lines)(canvas, result, metric)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="system-ui, sans-serif"><rect width="100%" height="100%" fill="#ffffff"/>\n'
        + "\n".join(canvas.elements)
        + "\n</svg>\n"
    )


def _bars(canvas: _Canvas, result: WorkloadResult, metric: Metric) -> None:
    found = _spreads(result.samples, metric, None)
    longest = max((each.greatest for each in found.values()), default=0) or 1
    room = _PANEL_WIDTH - _LABEL_WIDTH - _VALUE_WIDTH
    step = min(36.0, (_PANEL_HEIGHT - 30) / max(len(found), 1))
    for number, (peer, each) in enumerate(found.items()):
        top = 28 + number * step
        middle = top + step * 0.35
        canvas.text(_LABEL_WIDTH - 6, middle + 4, peer, anchor="end")
        canvas.box(_LABEL_WIDTH, top, each.median / longest * room, step * 0.7, _colour(peer))
        canvas.line(
            _LABEL_WIDTH + each.least / longest * room,
            middle,
            _LABEL_WIDTH + each.greatest / longest * room,
            middle,
            _INK,
        )
        canvas.text(_LABEL_WIDTH + each.greatest / longest * room + 6, middle + 4, _short(each.median))


def _lines(canvas: _Canvas, result: WorkloadResult, metric: Metric) -> None:
    points = [point for point in result.workload.points if point is not None]
    lines = {point: _spreads(result.samples, metric, point) for point in points}
    highest = max((each.greatest for found in lines.values() for each in found.values()), default=0) or 1
    left, right, top, bottom = 50, _PANEL_WIDTH - 10, 40, _PANEL_HEIGHT - 36
    span = log10(points[-1] / points[0]) or 1

    def across(point: int) -> float:
        return left + log10(point / points[0]) / span * (right - left)

    def up(value: float) -> float:
        return bottom - value / highest * (bottom - top)

    for share in (0, 0.5, 1):
        canvas.line(left, up(share * highest), right, up(share * highest), _FAINT)
        canvas.text(left - 6, up(share * highest) + 4, _short(share * highest), anchor="end", size=10)
    for point in points:
        canvas.text(across(point), bottom + 14, f"{point:,}", anchor="middle", size=10)
    canvas.text((left + right) / 2, bottom + 30, f"{result.workload.x_title} (logarithmic)", anchor="middle", size=10)
    for number, peer in enumerate(dict.fromkeys(sample.peer for sample in result.samples)):
        colour, before = _colour(peer), None
        canvas.box(left + number * 110, 24, 10, 8, colour)
        canvas.text(left + 14 + number * 110, 32, peer, size=10)
        for point in points:
            if (each := lines[point].get(peer)) is None:
                continue
            here = (across(point), up(each.median))
            canvas.line(here[0], up(each.least), here[0], up(each.greatest), colour)
            canvas.dot(*here, colour)
            if before:
                canvas.line(*before, *here, colour, 2)
            before = here


def _spreads(samples: Sequence[Sample], metric: Metric, point: int | None) -> dict[str, Spread]:
    names = dict.fromkeys(sample.peer for sample in samples)
    found = {name: spread(samples, name, metric.key, point) for name in names}
    return {name: each for name, each in found.items() if each is not None}


def _colour(peer: str) -> str:
    return _COLOURS.get(peer, _OTHER_COLOUR)


def _short(value: float) -> str:
    for size, suffix in ((1e6, " M"), (1e4, " k")):
        if value >= size:
            return f"{value / (1e6 if suffix == ' M' else 1e3):.3g}{suffix}"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
