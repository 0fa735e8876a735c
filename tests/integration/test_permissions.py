"""Permissions of the files of a real broker, and of a data folder of an earlier version."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

from tests.integration.process import BrokerProcess


def test_files_of_a_broker_are_private(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker").start()
    try:
        set_webhook(broker)
        found = {path: stat.S_IMODE(path.stat().st_mode) for path in [broker.data, *broker.data.rglob("*")]}
    finally:
        broker.terminate()
    assert len(found) > 5
    assert {path: oct(mode) for path, mode in found.items() if mode & 0o077} == {}
    assert "chmod" not in broker.log_text()


def test_a_data_folder_open_to_others_causes_a_warning(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker").start()
    broker.terminate()
    for path in [broker.data, *broker.data.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    broker.start()
    try:
        set_webhook(broker)
        assert f"run `chmod -R go= {broker.data}`" in broker.log_text()
    finally:
        broker.terminate()


def set_webhook(broker: BrokerProcess) -> None:
    for command in (
        ["topic", "create", "jobs"],
        ["subscription", "create", "jobs", "workers", "--set", "headrace.push.secret=hush"],
    ):
        subprocess.run(
            [Path(sys.executable).with_name("headrace"), *command, "--server", broker.address],
            check=True,
            capture_output=True,
        )
