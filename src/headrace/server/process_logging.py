"""Configure logging to stderr, as lines of text or as one JSON object per line.

- Both formats include the id of the request that caused the entry, if there is one.
- A repeated line, such as the one about a peer that is down, is suppressed for a while after the first few; the next
  one includes the number of suppressed lines.
- Secrets (tokens, passwords, message contents) must never be logged.
- Control characters are escaped, so that a name chosen by a client can neither forge a log line nor control a terminal.
  The lines of a traceback are indented, so that none of them looks like the start of an entry.
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from typing import Any, TextIO

import msgspec

from headrace.model.safe_text import escaped, escaped_json
from headrace.runtime.request_ids import request_id
from headrace.server.settings import LogFormat

REPEATS_MAX = 10  # per log statement and window
REPEAT_WINDOW_SECONDS = 10.0
_SITES_MAX = 1000

_encode = msgspec.json.Encoder().encode


def configure(level: str, style: LogFormat = "text", process_name: str = "", stream: TextIO | None = None) -> None:
    """Log to the stream, by default stderr. `process_name` identifies the process if several share the stream."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(process_name) if style == "json" else TextLines(process_name))
    handler.addFilter(RepetitionFilter())
    root = logging.getLogger()
    for before in root.handlers[:]:
        root.removeHandler(before)
    root.addHandler(handler)
    root.setLevel(level.upper())


class TextLines(logging.Formatter):
    def __init__(self, process_name: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {f'{process_name} ' if process_name else ''}%(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging calls it
        line = super().formatMessage(record)
        request = request_id.get()
        return escaped(f"{line} [{request}]" if request else line)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as logging calls it
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - as logging calls it
        return _indented(super().formatStack(stack_info))


class JsonLines(logging.Formatter):
    """One JSON object per line; a traceback is in the field `exc`."""

    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process_name = process_name

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process_name:
            line["node"] = self._process_name
        request = request_id.get()
        if request:
            line["request_id"] = request
        if record.exc_info:
            line["exc"] = self.formatException(record.exc_info)
        return escaped_json(_encode(line).decode())


def _indented(trace: str) -> str:
    return "\n".join(f"  {escaped(line)}" for line in trace.split("\n"))


class RepetitionFilter(logging.Filter):
    """Suppresses repeated lines. It counts per log statement rather than per message, so that a hundred peers that are
    down do not cause a hundred times as many lines."""

    def __init__(self) -> None:
        super().__init__()
        self._sites: dict[tuple[str, int], _LogSite] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key = record.pathname, record.lineno
        site = self._sites.get(key)
        if site is None:
            if len(self._sites) >= _SITES_MAX:
                self._sites.clear()
            site = self._sites[key] = _LogSite(record.created)
        if record.created - site.since >= REPEAT_WINDOW_SECONDS:
            suppressed = max(site.count - REPEATS_MAX, 0)
            site.since, site.count = record.created, 0
            if suppressed:
                record.msg = f"{record.getMessage()} ({suppressed} similar lines suppressed)"
                record.args = ()
        site.count += 1
        return site.count <= REPEATS_MAX


@dataclass(slots=True)
class _LogSite:
    since: float
    count: int = 0
