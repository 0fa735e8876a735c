"""The text that `headrace serve` prints at a terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.server.banner import command_name, print_banner


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "headrace"
    path.parent.mkdir()
    path.touch(0o755)
    return path


def test_the_command_is_bare_if_the_shell_finds_it(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", str(program.parent))
    assert command_name() == "headrace"


def test_the_command_is_absolute_if_the_shell_does_not_find_it(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(program.parent.parent)
    monkeypatch.setattr(sys, "argv", ["bin/headrace"])
    monkeypatch.setenv("PATH", "/nonexistent")
    assert command_name() == str(program)


def test_nothing_is_printed_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_banner("hello")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    print_banner("hello")
    assert capsys.readouterr().err == "\nhello\n\n"
