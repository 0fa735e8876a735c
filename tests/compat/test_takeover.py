"""Two members share 4 partitions, one is killed with SIGKILL, the other takes over (I2, I18)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.compat.member import SESSION_TIMEOUT_MS
from tests.integration.process import wait_until
from tests.integration.records import create_topic, produce

PARTITIONS = 4


class Seen(NamedTuple):
    """A record that a member reported, and its position."""

    partition: int
    offset: int
    value: str


class Member:
    """A consumer process that writes what it reads to a file."""

    def __init__(self, command: list[str], output: Path) -> None:
        self.output = output
        with output.open("wb") as stdout, output.with_suffix(".log").open("wb") as stderr:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)

    def seen(self) -> list[Seen]:
        text = self.output.read_text()
        whole = text[: text.rfind("\n") + 1]  # a killed member may have died in the middle of a line
        fields = [line.split(" ") for line in whole.splitlines()]
        return [Seen(int(partition), int(offset), value) for partition, offset, value in fields]

    def partitions_since(self, count: int) -> set[int]:
        return {seen.partition for seen in self.seen()[count:]}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def member(client: str, address: str, topic: str, output: Path) -> Iterator[Member]:
    command = [sys.executable, "-m", "tests.compat.member", client, address, topic]
    if client == "kcat":
        settings = ["auto.offset.reset=earliest", f"session.timeout.ms={SESSION_TIMEOUT_MS}"]
        settings += ["heartbeat.interval.ms=500", "auto.commit.interval.ms=200"]
        options = [option for setting in settings for option in ("-X", setting)]
        command = ["kcat", "-b", address, *options, "-u", "-f", "%p %o %s\n", "-G", topic, topic]
    started = Member(command, output)
    try:
        yield started
    finally:
        started.kill()


@pytest.mark.parametrize("client", ["confluent", "aiokafka", "kafka-python", "kcat"])
def test_the_other_member_takes_over_and_nothing_acknowledged_is_missed(
    address: str, name: str, tmp_path: Path, client: str
) -> None:
    if client == "kcat" and shutil.which("kcat") is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
    create_topic(address, name, PARTITIONS)
    acknowledged: list[str] = []

    def send_round() -> None:
        """Send a hundred records to every partition."""
        first = len(acknowledged)
        for partition in range(PARTITIONS):
            values = [f"{first + partition * 100 + number}" for number in range(100)]
            produce(address, name, [value.encode() for value in values], partition=partition)
            acknowledged.extend(values)

    with (
        member(client, address, name, tmp_path / "survivor.txt") as survivor,
        member(client, address, name, tmp_path / "victim.txt") as victim,
    ):

        def shared() -> bool:
            before = len(survivor.seen()), len(victim.seen())
            send_round()
            wait_until(lambda: _values(survivor, victim) >= set(acknowledged), "the round is read")
            return (
                len(survivor.partitions_since(before[0])) == len(victim.partitions_since(before[1])) == PARTITIONS // 2
            )

        wait_until(shared, "each member reads two partitions")
        victim.kill()
        before = len(survivor.seen())
        send_round()
        wait_until(lambda: _values(survivor, victim) >= set(acknowledged), "everything acknowledged is read")
        assert survivor.partitions_since(before) == set(range(PARTITIONS))
        for reader in (survivor, victim):
            _assert_values_stand_still(reader.seen(), acknowledged)


def _values(*members: Member) -> set[str]:
    return {seen.value for reader in members for seen in reader.seen()}


def _assert_values_stand_still(seen: list[Seen], acknowledged: list[str]) -> None:
    """Every (partition, offset) has one value, which was sent."""
    values: dict[tuple[int, int], str] = {}
    for partition, offset, value in seen:
        assert values.setdefault((partition, offset), value) == value
    assert set(values.values()) <= set(acknowledged)
