"""The screen of `headrace top`: a summary line and a table per kind of object, truncated to the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from headrace.cli.top_rows import Row, Sort, Summary, Table
from headrace.model.safe_text import escaped

_CLEAR_LINE, _HOME, _CLEAR_BELOW = "\x1b[K", "\x1b[H", "\x1b[J"
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Switch to the alternate screen without a cursor, and back."""

_HEADINGS = {
    "under_replicated": "BEHIND",
    "in_per_s": "IN/S",
    "out_per_s": "OUT/S",
    "acks_per_s": "ACKS/S",
    "bytes_in_per_s": "BYTES IN/S",
    "bytes_out_per_s": "BYTES OUT/S",
    "oldest_s": "OLDEST",
    "fsync_ms": "FSYNC MS",
    "loop_lag_ms": "LAG MS",
}
_NAME_LENGTH_MAX = 40
_LINES_AROUND = 2  # per table: its heading and an empty line after it
_WORDS = frozenset({"address", "group", "state", "subscription", "topic"})


class Line(NamedTuple):
    text: str
    is_heading: bool = False


def frame(summary: Summary, tables: Sequence[Table], sort: Sort, width: int, height: int) -> str:
    """Return the complete screen, which overwrites the previous one."""
    lines = screen_lines(summary, tables, sort, height)
    drawn = (click.style(text[:width], bold=is_heading or None) + _CLEAR_LINE for text, is_heading in lines)
    return _HOME + "\n".join(drawn) + _CLEAR_BELOW


def screen_lines(summary: Summary, tables: Sequence[Table], sort: Sort, height: int) -> list[Line]:
    """Return at most `height` lines. Each table gets a share of them; tables use the unneeded lines of others."""
    lines = [Line(headline(summary)), *(Line(f"! {escaped(trouble)}") for trouble in summary.troubles[:2])]
    shown = [table for table in tables if table.rows]
    left = height - len(lines) - 2 - _LINES_AROUND * len(shown)
    for position, table in enumerate(sorted(shown, key=lambda table: len(table.rows))):
        share = max(left // (len(shown) - position), 1)
        count = min(len(table.rows), share)
        left -= count
        shown[shown.index(table)] = table._replace(rows=table.rows[:count])
    for table in shown:
        heading, *rows = table_lines(table)
        lines += [Line(""), Line(heading, is_heading=True), *map(Line, rows)]
    lines = lines[: max(height - 1, 1)]
    return [*lines, Line(f"q: quit, s: change the sort order (now: {sort})")]


def headline(summary: Summary) -> str:
    parts = [
        f"{summary.brokers} brokers (controller {summary.controller})",
        f"{summary.topics} topics",
        f"{summary.partitions} partitions",
        f"{summary.under_replicated} under-replicated",
        f"{summary.offline} offline",
    ]
    return ", ".join(parts)


def table_lines(table: Table) -> list[str]:
    columns = [column for column in table.columns if any(row.get(column) is not None for row in table.rows)]
    cells = [[_text(column, row) for column in columns] for row in table.rows]
    headings = [_HEADINGS.get(column, column.upper()) for column in columns]
    if table.total > len(table.rows):
        headings[0] += f" ({len(table.rows)} of {table.total})"
    widths = [max(len(heading), *(len(line[at]) for line in cells)) for at, heading in enumerate(headings)]
    lines = []
    for line in (headings, *cells):
        padded = [
            text.ljust(width) if column in _WORDS else text.rjust(width)
            for column, text, width in zip(columns, line, widths, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def _text(column: str, row: Row) -> str:
    value = row.get(column)
    if value is None:
        return "-"
    if column == "broker" and row.get("is_controller"):
        return f"{value}*"
    if isinstance(value, str):
        printable = "".join(char if char.isprintable() else "\N{MIDDLE DOT}" for char in value)
        return (
            printable
            if len(printable) <= _NAME_LENGTH_MAX
            else f"{printable[: _NAME_LENGTH_MAX - 1]}\N{HORIZONTAL ELLIPSIS}"
        )
    return _number(column, value)


def _number(column: str, value: Any) -> str:
    if column == "cpu":
        return f"{value:.0%}"
    if column == "memory" or column.startswith("bytes_"):
        return size(value)
    if column == "oldest_s":
        return age(value)
    if column.endswith(("_ms", "_per_s")):
        return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
    return f"{value:,.0f}"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def age(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours < 1:
        return f"{minutes}m{int(seconds) % 60:02}s"
    return f"{hours}h{minutes % 60:02}m" if hours < 48 else f"{hours // 24}d"
