"""The display of a run: a bar on a terminal, lines in a log, at the right intervals."""

from __future__ import annotations

import io

import pytest

from headrace.pipeline.display import BarDisplay, Display, bar, display_on, figures
from headrace.pipeline.job import JobProgress


class ManualClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("progress", "rate", "text"),
    [
        (JobProgress(1200, 4800, "records"), 0, "1,200/4,800 records  lag 3,600"),
        (JobProgress(1200), 300.4, "1,200 records  300/s"),
        (JobProgress(5, 5, "files", "compacting"), 0, "5/5 files  compacting"),
        (JobProgress(5, 10, lag=7), 0, "5/10 records  lag 7"),
        (JobProgress(5, lag=0), 0, "5 records"),
    ],
)
def test_known_figures_are_shown(progress: JobProgress, rate: float, text: str) -> None:
    assert figures(progress, rate) == text


def test_a_bar_fills_and_is_omitted_without_a_total() -> None:
    assert bar(JobProgress(6, 24)) == f"[{'#' * 6}{'-' * 18}]  25%  "
    assert bar(JobProgress(30, 24)).startswith(f"[{'#' * 24}] 100%")
    assert bar(JobProgress(6)) == ""
    assert bar(JobProgress(0, 0)) == ""


def test_lines_are_written_at_intervals_and_when_the_note_changes() -> None:
    out, clock = io.StringIO(), ManualClock()
    display = Display("p", out, clock)
    for done in (1, 2, 3):
        display.progress(JobProgress(done))
        clock.seconds += 1
    display.progress(JobProgress(3, note="compacting"))
    clock.seconds += 10
    display.progress(JobProgress(40, note="compacting"))
    clock.seconds += 10
    display.progress(JobProgress(40, 40, note="compacting"))
    display.close()
    assert out.getvalue().splitlines() == [
        "p: 1 records",
        "p: 3 records  compacting",
        "p: 40 records  3/s  compacting",
        "p: 40/40 records  2/s  compacting",
    ]


def test_the_same_line_is_not_written_twice() -> None:
    out, clock = io.StringIO(), ManualClock()
    display = Display("p", out, clock)
    for _ in range(3):
        display.progress(JobProgress(0))
        clock.seconds += 60
    assert out.getvalue() == "p: 0 records\n"


def test_a_bar_is_redrawn_within_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    out, clock = Terminal(), ManualClock()
    display = display_on(out, "p", clock)
    assert isinstance(display, BarDisplay)
    display.progress(JobProgress(12, 24))
    display.progress(JobProgress(13, 24))
    clock.seconds += 1
    display.progress(JobProgress(24, 24, note="a note that is much too long"))
    display.write_line("something that stays")
    display.close()
    half, full = f"p  [{'#' * 12}{'-' * 12}]", f"p  [{'#' * 24}]"
    erase = "\r\x1b[K"
    assert out.getvalue() == f"{erase}{half}{erase}{full}{erase}p: something that stays\n{full}\n"


def test_output_that_is_not_a_terminal_gets_lines() -> None:
    assert type(display_on(io.StringIO(), "p", ManualClock())) is Display
