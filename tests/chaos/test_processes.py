"""Unit tests for processes: a wait ends when a client stalls, and hung libraries are noticed and counted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos import processes
from tests.chaos.namespaces import Host
from tests.chaos.processes import STALL_SECONDS, Processes, Stuck, wait_drained
from tests.chaos.transcript import Transcript
from tests.compat.time_limit import LIBRARY_HUNG
from tests.integration.process import wait_until

HOST = Host("c1", "127.0.0.1")


class FakeTime:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(processes, "time", fake)
    return fake


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Processes]:
    clients = Processes(tmp_path / "clients")
    yield clients
    clients.kill()


def test_a_client_that_progresses_slowly_may_take_longer_than_any_fixed_limit(fake_time: FakeTime) -> None:
    began = fake_time.now

    def copied() -> int:
        return int((fake_time.now - began) // (STALL_SECONDS - 10))

    wait_drained(lambda: copied() == 20, "20 records are copied", copied, lambda: f"{copied()} are copied")
    assert fake_time.now - began > 15 * STALL_SECONDS


def test_a_client_that_stands_still_is_reported_with_its_state(fake_time: FakeTime) -> None:
    began = fake_time.now
    with pytest.raises(Stuck, match="no progress for 120 s until all is copied: 7 are copied"):
        wait_drained(lambda: False, "all is copied", lambda: 7, lambda: "7 are copied")
    assert STALL_SECONDS < fake_time.now - began < STALL_SECONDS + 2


def test_a_backlog_that_shrinks_and_grows_again_is_no_progress(fake_time: FakeTime) -> None:
    backlogs = iter([9, 8] + [9, 8] * 1000)
    with pytest.raises(Stuck):
        wait_drained(lambda: False, "the queue is empty", lambda: -next(backlogs), lambda: "some messages left")
    assert fake_time.now < 1000.0 + 2 * STALL_SECONDS


@pytest.mark.parametrize("call", ["poll", "commit", "close"])
def test_a_client_whose_library_hangs_ends_and_is_restarted_and_counted(clients: Processes, call: str) -> None:
    hangs = f"""
import time
from tests.chaos.client import reported_time_limit
with reported_time_limit({call!r}, 0.2):
    time.sleep(600)
"""
    transcript = Transcript(clients.launch_command(HOST, "member-1", [sys.executable, "-c", hangs]))
    wait_until(lambda: clients.exit_code("member-1") == LIBRARY_HUNG, "the client ended")
    clients.read_on({"member-1": transcript}, restarted=(LIBRARY_HUNG,))
    assert transcript.errors == [f"a {call} took more than 0 s"]
    assert transcript.is_complete
    clients.restart_hung("member-1")
    assert clients.libraries_hung == 1


def test_a_copier_whose_poll_hangs_ends_with_the_code_that_is_counted(clients: Processes) -> None:
    hangs = """
import time
from tests.compat import copier as module

class HangingConsumer:
    def poll(self, seconds):
        time.sleep(600)

module.CALL_SECONDS = 0.2
copier = module.ConfluentCopier.__new__(module.ConfluentCopier)
copier._consumer = HangingConsumer()
copier.run()
"""
    clients.launch_command(HOST, "copier-1", [sys.executable, "-c", hangs])
    wait_until(lambda: clients.exit_code("copier-1") == LIBRARY_HUNG, "the copier ended")
    clients.launch_command(HOST, "copier-1", [sys.executable, "-c", ""])
    assert clients.libraries_hung == 1


def test_a_member_whose_consume_hangs_names_the_poll(clients: Processes) -> None:
    hangs = """
import time
from tests.chaos import client
from tests.compat.time_limit import time_limit

class HangingConsumer:
    def __init__(self, settings):
        pass

    def subscribe(self, topics, on_assign):
        pass

    def consume(self, count, timeout):
        time.sleep(600)

client.Consumer = HangingConsumer
client.time_limit = lambda seconds, report: time_limit(0.2, report)
client.Member("127.0.0.1:9092", "numbers", "members").run()
"""
    transcript = Transcript(clients.launch_command(HOST, "member-1", [sys.executable, "-c", hangs]))
    wait_until(lambda: clients.exit_code("member-1") == LIBRARY_HUNG, "the member ended")
    transcript.read_on()
    assert transcript.errors == ["a poll took more than 45 s"]
