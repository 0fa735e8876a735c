"""The steps of docs/operations.md to restore an older registry and to rebuild a lost one."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.integration.process import BrokerProcess

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def steps(heading: str) -> list[str]:
    """Return the commands of a section, in order."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return [line.split("  #")[0].strip() for line in found[1].splitlines()]


class Operator:
    """Runs the commands of the page in a temporary folder with the broker's `headrace-data`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = BrokerProcess(folder / "process", data=folder / "headrace-data").start()

    def follow(self, heading: str) -> str:
        output = ""
        for line in steps(heading):
            if line.startswith("kill "):
                assert self.broker.terminate() == 0
            elif line.startswith("headrace serve"):
                self.broker.start()
            else:
                output += self.run(line)
        return output

    def run(self, command: str) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command],
            check=False,
            cwd=self.folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout + done.stderr

    def produce(self, topic: str, value: str) -> None:
        self.run(f"echo {value} | headrace produce {topic} --server {self.broker.address}")

    def consume(self, topic: str) -> list[str]:
        output = self.run(f"headrace consume {topic} -o start -e -f '%s\\n' --server {self.broker.address} 2>/dev/null")
        return sorted(output.split())


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    operator = Operator(tmp_path)
    yield operator
    operator.broker.stop()


def create(operator: Operator, topic: str) -> None:
    server = operator.broker.address
    operator.run(f"headrace topic create {topic} -p 2 -c retention.ms=86400000 --server {server}")


def back_up(operator: Operator) -> None:
    with (
        closing(sqlite3.connect(operator.broker.data / "registry.db")) as source,
        closing(sqlite3.connect(operator.folder / "registry-backup.db")) as target,
    ):
        source.backup(target)


def test_restoring_an_older_registry_as_documented_recovers_every_topic(operator: Operator) -> None:
    create(operator, "older")
    back_up(operator)
    create(operator, "newer")
    for topic in ("older", "newer"):
        operator.produce(topic, "first")
    output = operator.follow("Restoring an older registry")
    assert "no changes made" in output
    for topic in ("older", "newer"):
        operator.produce(topic, "second")
        assert operator.consume(topic) == ["first", "second"]
    assert not list((operator.broker.data / "stray").glob("*-*"))


def test_rebuilding_a_lost_registry_as_documented_recovers_every_topic(operator: Operator) -> None:
    create(operator, "orders")
    operator.produce("orders", "first")
    cluster = (operator.broker.data / "broker").read_text().split("cluster_id")[1].split(",")[0]
    operator.follow("Rebuilding a lost registry")
    operator.produce("orders", "second")
    assert operator.consume("orders") == ["first", "second"]
    described = operator.run(f"headrace topic describe orders --configs --server {operator.broker.address} -o json")
    assert "86400000" in described
    assert cluster in (operator.broker.data / "broker").read_text()
    again = "headrace registry rebuild --from-logs --data headrace-data -o json"
    assert operator.broker.terminate() == 0
    assert "create" not in operator.run(again), "what is known is not written again"


def test_a_start_with_an_older_registry_keeps_unknown_topics_until_they_are_adopted_or_purged(
    operator: Operator,
) -> None:
    back_up(operator)
    for topic in ("kept", "purged"):
        create(operator, topic)
        operator.produce(topic, "first")
    assert operator.broker.terminate() == 0
    for name in ("registry.db-wal", "registry.db-shm"):
        (operator.broker.data / name).unlink(missing_ok=True)
    shutil.copy(operator.folder / "registry-backup.db", operator.broker.data / "registry.db")
    operator.broker.start()
    assert "headrace_stray_logs 4" in operator.broker.http_get("/metrics")
    doctor = f"headrace doctor --data headrace-data --server {operator.broker.address} -o table"
    assert "stray logs: 4 logs" in operator.run(doctor)
    operator.run("headrace log purge-stray purged --data headrace-data --yes")
    assert operator.broker.terminate() == 0
    assert "kept" in operator.run("headrace log stray --data headrace-data")
    operator.run("headrace log adopt kept --data headrace-data")
    operator.broker.start()
    operator.produce("kept", "second")
    assert operator.consume("kept") == ["first", "second"]
    assert "stray logs" not in operator.run(doctor)
