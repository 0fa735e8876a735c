"""Hosts that lose packets in one direction, both or randomly; full disks and power failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos import disks, namespaces
from tests.chaos.cluster import clean
from tests.chaos.disks import SmallDisk
from tests.chaos.namespaces import Host, Namespaces
from tests.chaos.run_locks import acquire_run_lock

ECHO = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 7))
print("ready", flush=True)
while True:
    content, peer = server.recvfrom(100)
    server.sendto(content, peer)
"""
ASK = """
import socket, sys
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(0.1)
replies = 0
for _ in range(int(sys.argv[2])):
    client.sendto(b"x", (sys.argv[1], 7))
    try:
        client.recv(100)
        replies += 1
    except TimeoutError:
        pass
print(replies)
"""


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Namespaces]:
    reason = namespaces.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    run_lock = acquire_run_lock(tmp_path)
    yield Namespaces(run_lock, ["a", "b"])
    namespaces.remove(run_lock.number)
    run_lock.release()


@pytest.fixture
def echo(network: Namespaces) -> Iterator[Host]:
    host = network.hosts["b"]
    command = [*host.prefix, sys.executable, "-c", ECHO, host.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield host
        server.kill()


def replies(network: Namespaces, echo: Host, requests: int = 5) -> int:
    command = [*network.hosts["a"].prefix, sys.executable, "-c", ASK, echo.address, str(requests)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("pair", [("a", "b"), ("b", "a")])
def test_a_cut_in_one_direction_is_enough_to_lose_the_replies(
    network: Namespaces, echo: Host, pair: tuple[str, str]
) -> None:
    assert replies(network, echo) == 5
    network.drop(*pair)
    assert replies(network, echo) == 0
    network.restore(*pair)
    assert replies(network, echo) == 5


def test_some_packets_are_lost_and_some_are_not(network: Namespaces, echo: Host) -> None:
    network.drop("a", "b", percent=50)
    assert 5 < replies(network, echo, requests=40) < 35


def test_a_small_disk_can_be_filled_and_emptied(tmp_path: Path) -> None:
    reason = disks.unavailable_reason(tmp_path)
    if reason is not None:
        pytest.skip(reason)
    disk = SmallDisk(tmp_path / "disk")
    try:
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.folder / "more").write_bytes(b"x" * 10**6)
        disk.empty()
        (disk.folder / "more").write_bytes(b"x" * 10**6)
    finally:
        disk.close()


def test_a_power_cut_keeps_only_synced_data(tmp_path: Path) -> None:
    if reason := disks.unavailable_reason(tmp_path) or namespaces.unavailable_reason():
        pytest.skip(reason)
    run_lock = acquire_run_lock(tmp_path)
    disk = SmallDisk(tmp_path / "disk")
    host = Namespaces(run_lock, ["a"]).hosts["a"]
    # Another host has a copy of the mount, which must not keep the file system alive.
    with subprocess.Popen([*host.prefix, "cat"], stdin=subprocess.PIPE) as other:
        try:
            for _ in range(2):
                with (disk.folder / "log").open("ab") as log:
                    log.write(b"synced")
                    log.flush()
                    os.fsync(log.fileno())
                    log.write(b"lost")
                    log.flush()
                (disk.folder / "never synced").write_bytes(b"lost")
                disk.cut_power()
                path = disk.folder / "never synced"
                assert (
                    not path.exists() or path.stat().st_size == 0
                )  # the kernel may have committed the journal meanwhile
            assert (disk.folder / "log").read_bytes() == b"synced" * 2
        finally:
            other.kill()
            disk.close()
            namespaces.remove(run_lock.number)
            run_lock.release()
    assert not list(disks.mounted_under(tmp_path))


def test_the_remains_of_a_killed_harness_are_removed(tmp_path: Path) -> None:
    if reason := namespaces.unavailable_reason():
        pytest.skip(reason)
    harness = (
        "import sys, pathlib; from tests.chaos.run_locks import acquire_run_lock;"
        "from tests.chaos.namespaces import Namespaces;"
        "run_lock = acquire_run_lock(pathlib.Path(sys.argv[1])); Namespaces(run_lock, ['a']);"
        "print(run_lock.number, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", harness, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        number = process.stdout.readline().strip()
        assert not any(f"run {number} " in one for one in clean()), "it is alive"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert any(f"run {number} " in one for one in clean())
    listing = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    assert f"hr{number}-" not in listing
