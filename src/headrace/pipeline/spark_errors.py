"""Summarize an error of Spark in one line: the Python cause first, not eighty lines of Java.

An error of Spark contains Java's stack, the worker's traceback in the middle of it, and the query's plan. The innermost
Python error says what happened; without one, the first sentence of Spark does.
"""

from __future__ import annotations

import re

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_ERROR = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<what>.*))?$")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] *")
_STATE = re.compile(r" *SQLSTATE: \w+.*")
_WRAPPERS = ("STREAM_FAILED", "FAILED_EXECUTE_UDF", "TASK_FAILED")
_JAVA = re.compile(r"^(?:Caused by)?: (?:[a-z_][\w$]*\.)*(?P<what>[A-Z]\S*(?:Exception|Error)\b.*)$", re.MULTILINE)
_LENGTH_MAX = 600


def is_of_spark(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def readable(error: BaseException, own_file: str = "") -> str:
    """One line; with the line number in `own_file`, if the error was raised there."""
    text = str(error)
    cause = _python_cause(text, own_file) or _spark_cause(text) or _java_cause(text) or _first_line(text)
    cause = cause or type(error).__name__
    return cause if len(cause) <= _LENGTH_MAX else cause[: _LENGTH_MAX - 3] + "..."


def location_in(error: BaseException, own_file: str) -> str:
    """` (file.py, line 12)` for an error that was raised in this process from code of the file; else empty."""
    location, frame = "", error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == own_file:
            location = f" ({own_file}, line {frame.tb_lineno})"
        frame = frame.tb_next
    return location


def _python_cause(text: str, own_file: str) -> str | None:
    """The last error of the last traceback: it wraps the earlier ones."""
    _, found, tail = text.rpartition(_TRACEBACK)
    if not found:
        return None
    for line in tail.splitlines()[1:]:
        if line.startswith((" ", "\t")) or not line.strip():
            continue
        error = _ERROR.match(line)
        if error is None:
            return None
        kind = error["kind"].rpartition(".")[2]
        what = (error["what"] or "").strip()
        lines = [frame["line"] for frame in _FRAME.finditer(tail) if frame["file"] == own_file]
        return f"{kind}: {what}".rstrip(": ") + (f" ({own_file}, line {lines[-1]})" if lines else "")
    return None


def _spark_cause(text: str) -> str | None:
    for found in _CONDITION.finditer(text):
        if found[1] not in _WRAPPERS:
            what = text[found.end() :].partition("\n")[0]
            return f"{_STATE.sub('', what).strip()} [{found[1]}]"
    return None


def _java_cause(text: str) -> str | None:
    """The innermost cause: the earlier ones wrap it."""
    causes = [found["what"].strip() for found in _JAVA.finditer(text)]
    return causes[-1] if causes else None


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
