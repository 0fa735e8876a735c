"""`make demo`: its first chapters run, the files of the others are valid, and a failed step fails the demo."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo import __main__ as command
from demo.pipelines import FILES
from demo.stage import NotAsTold, Stage
from demo.story import produce, redrive, work


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path, io.StringIO())
    yield stage
    stage.close()


def test_the_chapters_on_log_and_queue_pass(stage: Stage) -> None:
    stage.serve(*command.free_ports(2))
    for chapter in (produce, work, redrive):
        chapter(stage)


def test_the_pipeline_files_are_valid(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    names = [name for name in FILES if name.endswith(".toml")]
    lint = [str(Path(sys.executable).parent / "headrace"), "pipeline", "lint", *names]
    checked = subprocess.run(lint, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_a_command_that_fails_ends_the_story(stage: Stage) -> None:
    with pytest.raises(NotAsTold, match="`echo no; exit 3` ended with 3:\nno"):
        stage.do("echo no; exit 3")


def test_a_step_that_shows_something_else_makes_the_demo_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "CHAPTERS", [lambda stage: stage.expect("orders billed", 1999, 2000)])
    assert command.main(["--report", str(tmp_path / "report.html")]) == 1
    assert "The demo failed: orders billed: 1999 instead of 2000" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
