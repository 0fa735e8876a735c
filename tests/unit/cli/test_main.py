"""The command line: fast help, exit codes, one-line errors, no tracebacks."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import __version__
from headrace.cli.main import _COMMANDS, main
from headrace.runtime.disk import SystemDisk


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    exit_code = main(arguments)
    captured = capsys.readouterr()
    return exit_code, captured.out, captured.err


def test_help_lists_every_command_without_importing_any(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, out, _ = run(["--help"], capsys)
    assert exit_code == 0
    assert all(name in out for name in _COMMANDS)
    script = (
        "import sys; from headrace.cli.main import main; main(['--help']);"
        "print([m for m in sys.modules if m.startswith(('headrace.client', 'headrace.wire', 'asyncio', 'uvloop'))])"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", list(_COMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, out, _ = run([name, "--help"], capsys)
    assert exit_code == 0
    assert out.startswith(f"Usage: headrace {name}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["topic", "create"],
        ["topic", "list", "--server", "host:port"],
        ["topic", "alter", "orders"],
        ["topic", "create", "orders", "--config", "retention.ms"],
        ["consume", "orders", "-o", "yesterday"],
        ["consume", "orders", "-f", "%x"],
        ["consume", "orders", "-f", "%s", "--json"],
        ["consume", "orders", "-g", "g", "-o", "-10"],
        ["produce", "orders", "--json", "-K:"],
        ["bench", "produce", "--size", "-1"],
        ["serve", "--set", "num.partitions"],
        ["doctor", "--http", "nowhere:x"],
        ["serve", "--set", "num.partition=3"],
        ["serve", "--brokers", "2", "--set", "num.partitions=x"],
        ["token", "create", "x", "-s", "foo:bar"],
    ],
)
def test_wrong_usage_is_one_line_that_names_help_and_exits_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, out, err = run(arguments, capsys)
    assert (exit_code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "--help`" in err


def test_an_unreachable_broker_exits_with_3_and_names_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, out, err = run(["topic", "list", "--server", "127.0.0.1:1"], capsys)
    assert (exit_code, out) == (3, "")
    assert err.startswith("error: cannot connect to 127.0.0.1:1")
    assert "`headrace serve`" in err
    assert err.count("\n") == 1


def test_the_server_defaults_to_the_environment_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SERVER", "127.0.0.1:2")
    assert "127.0.0.1:2" in run(["topic", "list"], capsys)[2]
    assert "127.0.0.1:1" in run(["topic", "list", "--bootstrap-server", "127.0.0.1:1"], capsys)[2]


def test_destructive_commands_require_yes_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["topic", "delete", "t"], ["topic", "trim", "t"], ["topic", "add-partitions", "t", "4"]):
        exit_code, _, err = run(arguments, capsys)
        assert exit_code == 2
        assert "--yes" in err


def test_listening_on_all_addresses_is_rejected_with_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    exit_code, out, err = run(["serve", "--kafka", "0.0.0.0:0", "--data", str(tmp_path)], capsys)
    assert (exit_code, out) == (1, "")
    assert err.startswith("error: ")
    assert "--insecure" in err


def test_version_is_printed_as_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version", "-o", "table"], capsys)[1].startswith("headrace ")
    assert run(["version"], capsys)[1].startswith('{"headrace":')


def test_the_version_is_also_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, out, _ = run(["--version"], capsys)
    assert (exit_code, out) == (0, f"headrace {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "similar"), [(["topi", "list"], "topic"), (["topic", "lst"], "list"), (["prodcue", "x"], "produce")]
)
def test_an_unknown_command_names_a_similar_one(
    arguments: list[str], similar: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, _, err = run(arguments, capsys)
    assert exit_code == 2
    assert f"Did you mean '{similar}'?" in err


def test_a_declined_question_exits_with_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    exit_code, _, err = run(["topic", "delete", "orders"], capsys)
    assert exit_code == 1
    assert err.splitlines()[-1].endswith("error: declined; nothing was changed")


def test_a_data_folder_that_a_broker_uses_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    disk = SystemDisk()
    disk.lock(str(tmp_path))
    try:
        assert main(["registry", "rebuild", "--from-logs", "--data", str(tmp_path)]) == 1
    finally:
        disk.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "in use" in line
