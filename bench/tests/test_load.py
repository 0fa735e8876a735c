"""A load that is told what to do, line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import load
from bench.failure import BenchFailure
from bench.load import QueueLoad

_OBEDIENT = """#!/bin/sh
while read -r command; do
  [ "$command" = die ] && { echo "the server is gone" >&2; exit 1; }
  echo "{\\"did\\": \\"$command $*\\"}"
done
"""


@pytest.fixture
def obedient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueueLoad:
    program = tmp_path / "obedient"
    program.write_text(_OBEDIENT)
    program.chmod(0o755)
    monkeypatch.setattr(load, "queueload", lambda: program)
    return QueueLoad("redis", "here:1", "bench", 100)


def test_every_command_is_answered_by_what_it_measured(obedient: QueueLoad) -> None:
    try:
        assert obedient.do("join 1 10") == {"did": "join 1 10 redis here:1 bench 100"}
        assert obedient.do("drain 3")["did"].startswith("drain 3")
    finally:
        obedient.close()


def test_a_load_that_fails_is_reported_with_its_last_words_and_can_be_closed(obedient: QueueLoad) -> None:
    with pytest.raises(BenchFailure, match="the server is gone"):
        obedient.do("die")
    obedient.close()
