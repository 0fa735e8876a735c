"""`make demo`: the sections without Spark run, the pipeline files are valid, and a failed step is an error."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo import __main__ as command
from demo.messaging import produce, redrive, work
from demo.pipelines import FILES
from demo.runner import DemoRunner, StepFailed


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[DemoRunner]:
    demo = DemoRunner(tmp_path, io.StringIO())
    yield demo
    demo.close()


def test_the_sections_without_spark_succeed(demo: DemoRunner) -> None:
    demo.serve(*command.free_ports(2))
    for section in (produce, work, redrive):
        section(demo)


def test_the_pipeline_files_are_valid(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    names = [name for name in FILES if name.endswith(".toml")]
    lint = [str(Path(sys.executable).parent / "headrace"), "pipeline", "lint", *names]
    checked = subprocess.run(lint, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_a_failed_command_fails_the_demo(demo: DemoRunner) -> None:
    with pytest.raises(StepFailed, match="`echo no; exit 3` ended with 3:\nno"):
        demo.run("echo no; exit 3")


def test_an_unexpected_result_fails_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "SECTIONS", [lambda demo: demo.expect("orders billed", 1999, 2000)])
    assert command.main(["--report", str(tmp_path / "report.html")]) == 1
    assert "The demo failed: orders billed: 1999 instead of 2000" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
