"""What went wrong in Spark, in a line: the Python cause first, not eighty lines of Java.

An error of Spark's holds the whole way that it came: Java's stack, the worker's traceback in the middle of it, the
query's plan. The innermost Python error says what happened; where there is none, Spark's own first sentence does.
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
    """One line; with the place in `own_file`, if the error came from there."""
    text = str(error)
    cause = _python_cause(text, own_file) or _spark_cause(text) or _java_cause(text) or _first_line(text)
    cause = cause or type(error).__name__
    return cause if len(cause) <= _LENGTH_MAX else cause[: _LENGTH_MAX - 3] + "..."


def place_in(error: BaseException, own_file: str) -> str:
    """` (file.py, line 12)` for an error that was raised in this process below the file's code; else nothing."""
    place, frame = "", error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == own_file:
            place = f" ({own_file}, line {frame.tb_lineno})"
        frame = frame.tb_next
    return place


def _python_cause(text: str, own_file: str) -> str | None:
    """The last error of the last traceback: the ones before it were wrapped by it."""
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
        place = [frame["line"] for frame in _FRAME.finditer(tail) if frame["file"] == own_file]
        return f"{kind}: {what}".rstrip(": ") + (f" ({own_file}, line {place[-1]})" if place else "")
    return None


def _spark_cause(text: str) -> str | None:
    for found in _CONDITION.finditer(text):
        if found[1] not in _WRAPPERS:
            what = text[found.end() :].partition("\n")[0]
            return f"{_STATE.sub('', what).strip()} [{found[1]}]"
    return None


def _java_cause(text: str) -> str | None:
    """The innermost: the ones before it wrap it."""
    causes = [found["what"].strip() for found in _JAVA.finditer(text)]
    return causes[-1] if causes else None


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
