"""The job `fake`, known by its name as the real ones are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.pipeline import fakes

from headrace.pipeline import jobs


@pytest.fixture(autouse=True)
def fake_job(monkeypatch: pytest.MonkeyPatch) -> type[fakes.FakeJob]:
    monkeypatch.setitem(jobs.JOBS, "fake", (fakes.__name__, "FakeJob", "does nothing"))
    return fakes.FakeJob


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """A file with this text, in a folder of its own."""

    def write(text: str, name: str = "orders.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
