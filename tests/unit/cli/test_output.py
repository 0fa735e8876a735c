"""Untrusted text in the output cannot control the terminal."""

from __future__ import annotations

import json

import pytest

from headrace.cli import main
from headrace.cli.output import echo, print_rows, print_status, print_table, to_json
from headrace.cli.topics.consume import choose_printer
from headrace.client.fetch.fetched_records import ConsumedRecord

CLEAR = "a\x1b[2J\nforged\x9b31m"
SHOWN = "a\\x1b[2J\\nforged\\x9b31m"


def record(value: bytes, key: bytes | None = None) -> ConsumedRecord:
    return ConsumedRecord("jobs", 0, 0, 0, key, value, [])


def test_tables_and_lines_escape_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"name": CLEAR, "tags": [CLEAR]}], ("name", "tags"))
    echo(f"name {CLEAR}")
    print_status(f"{CLEAR} was deleted")
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1:] == [f"{SHOWN}  {SHOWN}", f"name {SHOWN}"]
    assert captured.err == f"{SHOWN} was deleted\n"


def test_json_output_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"name": CLEAR}], ("name",), "json")
    line = capsys.readouterr().out
    assert json.loads(line) == {"name": CLEAR}
    assert line.rstrip("\n").isprintable()
    assert to_json("\x7f") == '"\\u007f"'


def test_errors_escape_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["topic", "describe", "-s", "127.0.0.1:x\x1b[2J", "jobs"]) != 0
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize(("template", "separator"), [(None, None), (None, ":"), ("%k:%s\\n", None)])
def test_values_are_escaped_on_a_terminal_and_raw_in_a_pipe(
    template: str | None, separator: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = b"tab\there \x1b]0;title\x07 \xc2\x9b \xff"
    for is_terminal in (False, True):
        monkeypatch.setattr("sys.stdout.isatty", lambda is_terminal=is_terminal: is_terminal)
        printed = choose_printer(template, separator, as_json=False)(record(value, b"\x1bk"))
        if is_terminal:
            assert printed.endswith(rb"tab\there \x1b]0;title\x07 \x9b \xff".replace(rb"\t", b"\t") + b"\n")
            assert b"\x1b" not in printed
        else:
            assert printed.endswith(value + b"\n")
