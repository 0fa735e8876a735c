"""Display the progress of a run on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import shutil
from typing import Final, TextIO

from headrace.pipeline.job import JobProgress
from headrace.runtime.clock import Clock

BAR_SECONDS: Final = 0.2
LINE_SECONDS: Final = 10.0
_BAR_WIDTH = 24
_ERASE = "\r\x1b[K"


class Display:
    """For logs: a line when the note changes, else at intervals. The rate counts from the first report."""

    every_seconds = LINE_SECONDS

    def __init__(self, name: str, out: TextIO, clock: Clock) -> None:
        self._name = name
        self._out = out
        self._clock = clock
        self._first: tuple[float, int] | None = None
        self._shown: float | None = None
        self._note = ""
        self._last = ""

    def progress(self, progress: JobProgress) -> None:
        now = self._clock.monotonic()
        if self._first is None:
            self._first = now, progress.done
        is_due = self._shown is None or now - self._shown >= self.every_seconds
        if not is_due and progress.note == self._note and progress.done != progress.total:
            return
        self._shown, self._note = now, progress.note
        since, before = self._first
        rate = (progress.done - before) / (now - since) if now - since >= 1 else 0
        self._show(progress, rate)

    def _show(self, progress: JobProgress, rate: float) -> None:
        line = figures(progress, rate)
        if line != self._last:
            self._last = line
            self.write_line(line)

    def write_line(self, line: str) -> None:
        """Write a line that stays."""
        self._out.write(f"{self._name}: {line}\n")
        self._out.flush()

    def close(self) -> None:
        self._out.flush()


class BarDisplay(Display):
    """For terminals: one line that is redrawn, never wider than the terminal."""

    every_seconds = BAR_SECONDS
    _drawn = ""

    def _show(self, progress: JobProgress, rate: float) -> None:
        line = f"{self._name}  {bar(progress)}{figures(progress, rate)}"
        self._drawn = line[: shutil.get_terminal_size().columns - 1]
        self._out.write(_ERASE + self._drawn)
        self._out.flush()

    def write_line(self, line: str) -> None:
        self._out.write(f"{_ERASE if self._drawn else ''}{self._name}: {line}\n{self._drawn}")
        self._out.flush()

    def close(self) -> None:
        if self._drawn:
            self._out.write("\n")
        self._out.flush()


def display_on(out: TextIO, name: str, clock: Clock) -> Display:
    return BarDisplay(name, out, clock) if out.isatty() else Display(name, out, clock)


def bar(progress: JobProgress) -> str:
    """Empty if the total is unknown."""
    if not progress.total:
        return ""
    part = min(progress.done / progress.total, 1.0)
    full = int(part * _BAR_WIDTH)
    return f"[{'#' * full}{'-' * (_BAR_WIDTH - full)}] {part:4.0%}  "


def figures(progress: JobProgress, rate: float) -> str:
    total = f"/{progress.total:,}" if progress.total is not None else ""
    parts = [f"{progress.done:,}{total} {progress.unit}"]
    if rate >= 1:
        parts.append(f"{rate:,.0f}/s")
    if progress.behind is not None and progress.behind != 0:
        parts.append(f"lag {progress.behind:,}")
    if progress.note:
        parts.append(progress.note)
    return "  ".join(parts)
