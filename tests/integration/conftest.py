"""Fixtures with broker processes, which are stopped at the end of each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.process import BrokerProcess

StartBroker = Callable[..., BrokerProcess]

_figures_key = pytest.StashKey[list[str]]()


class Figures:
    """Collect measurements of a test; they are printed at the end of the run, never asserted."""

    def __init__(self, lines: list[str], test: str) -> None:
        self._lines, self._test = lines, test

    def add(self, line: str) -> None:
        self._lines.append(f"{self._test}: {line}")


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    return Figures(request.config.stash.setdefault(_figures_key, []), request.node.name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(_figures_key, [])
    if lines:
        terminalreporter.section("figures")
    for line in lines:
        terminalreporter.write_line(line)


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Start a broker with other settings: `start_broker(settings={...})`."""
    started: list[BrokerProcess] = []

    def start(settings: dict[str, str] | None = None, data: Path | None = None) -> BrokerProcess:
        broker = BrokerProcess(tmp_path / f"broker-{len(started)}", settings, data)
        started.append(broker)
        return broker.start()

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    """A new broker with default settings."""
    return start_broker()
