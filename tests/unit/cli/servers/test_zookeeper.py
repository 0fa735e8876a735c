"""`headrace zookeeper` passes its options on, and rejects invalid ones with a one-line error."""

from __future__ import annotations

import pytest

from headrace.cli.main import main
from headrace.server import zookeeper
from headrace.server.zookeeper import ZooKeeperSettings


def test_the_options_reach_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[ZooKeeperSettings] = []

    def run(settings: ZooKeeperSettings) -> int:
        received.append(settings)
        return 0

    monkeypatch.setattr(zookeeper, "run_zookeeper", run)
    assert main(["zookeeper"]) == 0
    assert main(["zookeeper", "--data", "d", "--listen", "[::1]:2222", "--nodes", "3", "--insecure"]) == 0
    assert received == [
        ZooKeeperSettings("zookeeper-data", ("127.0.0.1", 2181), 1, insecure=False),
        ZooKeeperSettings("d", ("::1", 2222), 3, insecure=True),
    ]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "why"),
    [
        (["--listen", "2181"], 2, "--listen must be HOST:PORT, not '2181'"),
        (["--nodes", "0"], 2, "--nodes"),
        (["--nodes", "2"], 1, "--nodes must be odd"),
        (["--listen", "0.0.0.0:2181"], 1, "or use --insecure"),
    ],
)
def test_invalid_options_are_a_one_line_error(
    arguments: list[str], exit_code: int, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["zookeeper", *arguments]) == exit_code
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert why in error
    assert error.count("\n") == 1
