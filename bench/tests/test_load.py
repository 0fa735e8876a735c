"""A load generator that executes commands from its standard input."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import load
from bench.failure import BenchFailure
from bench.load import QueueLoad

_SCRIPT = """#!/bin/sh
while read -r command; do
  [ "$command" = die ] && { echo "the server is gone" >&2; exit 1; }
  echo "{\\"did\\": \\"$command $*\\"}"
done
"""


@pytest.fixture
def load_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueueLoad:
    program = tmp_path / "obedient"
    program.write_text(_SCRIPT)
    program.chmod(0o755)
    monkeypatch.setattr(load, "queueload", lambda: program)
    return QueueLoad("redis", "here:1", "bench", 100)


def test_every_command_returns_its_measurements(load_generator: QueueLoad) -> None:
    try:
        assert load_generator.run_command("join 1 10") == {"did": "join 1 10 redis here:1 bench 100"}
        assert load_generator.run_command("drain 3")["did"].startswith("drain 3")
    finally:
        load_generator.close()


def test_a_failed_load_generator_is_reported_with_its_error_and_can_be_closed(load_generator: QueueLoad) -> None:
    with pytest.raises(BenchFailure, match="the server is gone"):
        load_generator.run_command("die")
    load_generator.close()
