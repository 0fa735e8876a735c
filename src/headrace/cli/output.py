"""Print results: as a table on a terminal, and as one JSON object per line in a pipe.

All output of commands goes through this module, which escapes control characters: names, keys, headers and error
messages come from other clients and must not control the terminal. Only `consume` in a pipe writes raw values.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from headrace.model.safe_text import escaped, escaped_json

Row = Mapping[str, Any]

_encode = msgspec.json.Encoder().encode


output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    help="A table (the default on a terminal) or one JSON object per line (the default in a pipe).",
)


def print_rows(rows: Iterable[Row], columns: Sequence[str], output: str | None) -> None:
    """Print rows; a table shows the given columns, JSON all of them."""
    if wants_json(output):
        print_json(rows)
    else:
        print_table(list(rows), columns)


def wants_json(output: str | None) -> bool:
    return output == "json" or (output is None and not sys.stdout.isatty())


def print_json(rows: Iterable[Row]) -> None:
    for row in rows:
        sys.stdout.write(to_json(row) + "\n")
    sys.stdout.flush()


def print_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print aligned columns with headings, numbers to the right."""
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    headings = [column.upper().replace("_", " ") for column in columns]
    numeric = [bool(rows) and all(isinstance(row.get(c), int | float) for row in rows) for c in columns]
    sys.stdout.writelines(f"{line}\n" for line in aligned([headings, *cells], numeric))
    sys.stdout.flush()


def aligned(lines: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Pad the cells of each column to the same width, to the right or to the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    ]


def shortened(
    text: str, length_max: int, *, filler: str = "\N{MIDDLE DOT}", end: str = "\N{HORIZONTAL ELLIPSIS}"
) -> str:
    """Return the text as one line of at most `length_max` characters."""
    text = "".join(char if char.isprintable() else filler for char in text[: length_max + 1])
    return text if len(text) <= length_max else text[: length_max - len(end)] + end


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return the number with the noun, as in "1 broker" and "2 brokers"."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def print_status(message: str) -> None:
    """Print a message that is not part of the result."""
    echo(message, err=True)


def echo(*lines: str, err: bool = False) -> None:
    """Print lines, or an empty line if there are none."""
    for line in lines or ("",):
        click.echo(escaped(line), err=err)  # noqa: TID251


def to_json(value: Any) -> str:
    return escaped_json(_encode(value).decode())


def local_time(milliseconds: int | None) -> str | None:
    """Format a timestamp as local time; None without one, which may be a negative number."""
    if milliseconds is None or milliseconds < 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return f"{milliseconds} ms"  # out of range: producers may set any timestamp


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return escaped(",".join(map(str, value))) or "-"
    return escaped(str(value))
