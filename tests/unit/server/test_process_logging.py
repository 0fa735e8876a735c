"""Log output as text or JSON, with request ids, and with repetitions suppressed."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.runtime.request_ids import request_id
from headrace.server.process_logging import (
    REPEAT_WINDOW_SECONDS,
    REPEATS_MAX,
    RepetitionFilter,
    configure,
)
from headrace.server.settings import LogFormat

log = logging.getLogger("headrace.test")


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    """Restore the handlers of pytest afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def begin(style: LogFormat, process_name: str = "", level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure(level, style, process_name, stream)
    return stream


def lines(stream: io.StringIO) -> list[Any]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_text_is_one_line_per_entry() -> None:
    stream = begin("text")
    log.warning("disk of %s: %d bytes", "/data", 5)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING headrace.test disk of /data: 5 bytes\n", stream.getvalue()
    )


def test_text_names_the_process_and_the_request() -> None:
    stream = begin("text", "broker-2")
    token = request_id.set("r-17")
    log.info("done")
    request_id.reset(token)
    assert stream.getvalue().endswith(" INFO broker-2 headrace.test done [r-17]\n")


def test_json_is_one_object_per_line() -> None:
    stream = begin("json", "broker-2")
    log.info("two\nlines and a %s", '"quote"')
    (line,) = lines(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("ts"))
    assert line == {
        "level": "info",
        "logger": "headrace.test",
        "message": 'two\nlines and a "quote"',
        "node": "broker-2",
    }


def test_json_contains_the_request_and_the_traceback() -> None:
    stream = begin("json")
    token = request_id.set("r-18")
    try:
        raise ValueError("a bug")
    except ValueError:
        log.exception("it failed")
    request_id.reset(token)
    (line,) = lines(stream)
    assert line["request_id"] == "r-18"
    assert line["level"] == "error"
    assert line["exc"].endswith("ValueError: a bug")
    assert "node" not in line


def test_the_level_is_set_and_earlier_handlers_are_removed() -> None:
    first = begin("text")
    second = begin("text", level="error")
    log.warning("no")
    log.error("yes")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1


def complaint(at: float, line: int = 1, message: str = "peer %d is down", *arguments: int) -> logging.LogRecord:
    record = logging.LogRecord("headrace.test", logging.WARNING, "peers.py", line, message, arguments or (3,), None)
    record.created = at
    return record


def test_repeated_lines_are_suppressed() -> None:
    repetitions = RepetitionFilter()
    written = [repetitions.filter(complaint(0.01 * number, 1, "peer %d is down", number)) for number in range(100)]
    assert written == [True] * REPEATS_MAX + [False] * (100 - REPEATS_MAX)
    assert repetitions.filter(complaint(1.0, line=2)), "another complaint"
    later = complaint(REPEAT_WINDOW_SECONDS)
    assert repetitions.filter(later)
    assert later.getMessage() == "peer 3 is down (90 similar lines suppressed)"
    again = complaint(REPEAT_WINDOW_SECONDS + 0.1)
    assert repetitions.filter(again)
    assert again.getMessage() == "peer 3 is down"


def test_occasional_lines_are_always_written() -> None:
    repetitions = RepetitionFilter()
    for number in range(50):
        record = complaint(number * 2.0)
        assert repetitions.filter(record)
        assert record.getMessage() == "peer 3 is down"


def test_the_memory_of_the_filter_is_bounded() -> None:
    repetitions = RepetitionFilter()
    for line in range(5000):
        assert repetitions.filter(complaint(0.0, line))
    assert len(repetitions._sites) <= 1000


@pytest.mark.parametrize("style", ["text", "json"])
def test_line_breaks_and_escape_sequences_in_names_are_escaped(style: LogFormat) -> None:
    stream = begin(style)
    log.warning("subscription %s was deleted", "a\r\n2026-11-18 INFO forged\x1b[2J\x9b\u2028")
    (line,) = stream.getvalue().splitlines()
    assert "forged" in line
    assert line.isprintable()


def test_a_traceback_cannot_forge_a_line() -> None:
    stream = begin("text")
    try:
        raise ValueError("no\n2026-11-18 INFO forged\x1b[2J")
    except ValueError:
        log.exception("it failed")
    first, *trace = stream.getvalue().splitlines()
    assert first.endswith("it failed")
    assert any("forged" in line for line in trace)
    assert all(line.startswith("  ") and line.isprintable() for line in trace)
