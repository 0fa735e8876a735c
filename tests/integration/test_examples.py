"""The programs of examples/ are short and produce the expected output with a real broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
LINES_MAX = 80

TOLD = {
    "email_dispatch": [
        "sent 'Your order' to ada@example.org at attempt 1",
        "sent 'Your invoice' to grace@busy.example.org at attempt 3",
        "after 1: 'nobody' is no address",
        "after 4: ConnectionError: the server of alan@gone.example.org does not answer",
        "2 dead letters were sent back",
    ],
    "media_processing": ["finished: breaking-news.mp4, lecture.mp4, holiday.mp4, archive.mp4"],
    "payments_exactly_once": [
        "power cut while payments:0:0 was booked",
        "power cut while payments:0:1 was booked",
        "balances: {'ada': 20, 'grace': 20, 'alan': 5}",
    ],
    "recommender_fanout": ["trends: [('lamp', 6), ('desk', 3)]", "thanked: ['ada', 'alan', 'grace']"],
    "request_reply": ["lamp costs 30", "chair costs we do not know what"],
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_an_example_is_short_and_does_what_it_says(program: Path, broker: BrokerProcess) -> None:
    assert len(program.read_text().splitlines()) < LINES_MAX
    ran = subprocess.run(
        [sys.executable, str(program), broker.address],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    for line in TOLD[program.stem]:
        assert line in ran.stdout


def test_every_example_is_in_the_list() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert [program.stem for program in PROGRAMS if f"`{program.name}`" not in page] == []
