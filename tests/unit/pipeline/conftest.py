"""Fixtures: the registered job `fake`, an embedded broker, and an in-process run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.pipeline import fakes
from tests.unit.pipeline.in_process_run import Brokers, InProcessRun

from headrace.pipeline import job as jobs
from headrace.testkit.embedded import EmbeddedBroker


@pytest.fixture(autouse=True)
def fake_job(monkeypatch: pytest.MonkeyPatch) -> type[fakes.FakeJob]:
    monkeypatch.setitem(jobs.JOBS, "fake", (fakes.__name__, "FakeJob", "does nothing"))
    return fakes.FakeJob


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Write a file with this text to the temporary folder."""

    def write(text: str, name: str = "orders.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.address


@pytest.fixture
def brokers(address: str) -> Brokers:
    return Brokers(address)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that is unique to the test."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", str(request.node.name))[:200].strip("-")


@pytest.fixture
def run(address: str, tmp_path: Path, topic: str) -> InProcessRun:
    found = InProcessRun(address, tmp_path / "work")
    found.name = topic[-90:]
    return found
