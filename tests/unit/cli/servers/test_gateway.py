"""`headrace gateway` rejects invalid options with a one-line error."""

from __future__ import annotations

import pytest

from headrace.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("--publish-only", "--subscribe-only"), 2, "exclude each other"),
        (("--http", "8080"), 2, "--http must be HOST:PORT"),
        (("--bootstrap", "host:port"), 2, "--bootstrap"),
        (("--http-tls-cert", __file__), 2, "require each other"),
        (("--http", "0.0.0.0:0"), 1, "without TLS and authentication"),
        (("--http", "0.0.0.0:0", "--auth"), 1, "without TLS;"),
    ],
    ids=str,
)
def test_invalid_options_are_a_one_line_error(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], exit_code: int, message: str
) -> None:
    assert main(["gateway", *arguments]) == exit_code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert message in lines[0]
