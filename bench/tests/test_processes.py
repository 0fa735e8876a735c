"""What a process costs, and that nothing outlives its stop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import processes
from bench.failure import BenchFailure
from bench.processes import Launch, ServerProcess, process_tree

_PATIENCE_S = 20


def test_the_cpu_and_memory_of_a_child_are_the_servers(tmp_path: Path) -> None:
    burn = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    server = ServerProcess("burner", Launch(["python3", "-c", burn], {}), tmp_path / "out")
    try:
        _wait(lambda: server.cpu_seconds() > 0.3)
        assert len(process_tree(server.pid)) == 2
        assert server.peak_rss_bytes() >= server.rss_bytes() > 1_000_000
    finally:
        tree = process_tree(server.pid)
        server.stop()
    _wait(lambda: not any(_is_running(pid) for pid in tree))


def test_threads_of_the_kernel_that_come_and_go_take_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    per_second = os.sysconf("SC_CLK_TCK")
    before = {11: 5 * per_second, 12: 1_000 * per_second}
    now = {11: 6 * per_second, 13: 2 * per_second}
    monkeypatch.setattr(processes, "kernel_cpu_ticks", lambda: now)
    assert processes.kernel_cpu_seconds_since(before) == 3.0


def test_a_thread_that_ends_under_our_eyes_hides_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerProcess("sleeper", Launch(["sh", "-c", "sleep 1000; true"], {}), tmp_path / "out")
    threads = Path.iterdir
    try:
        _wait(lambda: len(process_tree(server.pid)) == 2)
        monkeypatch.setattr(Path, "iterdir", lambda path: [path / "0", *threads(path)])
        assert len(process_tree(server.pid)) == 2
    finally:
        monkeypatch.undo()
        server.stop()


def test_a_server_that_died_is_reported_with_its_last_words(tmp_path: Path) -> None:
    server = ServerProcess("mayfly", Launch(["sh", "-c", "echo no disk; exit 3"], {}), tmp_path / "out")
    _wait(lambda: not _is_running(server.pid))
    with pytest.raises(BenchFailure, match="mayfly ended with code 3; its last words:\nno disk"):
        server.check_alive()


def test_a_cluster_is_charged_for_all_of_its_processes_and_all_of_them_end(tmp_path: Path) -> None:
    sleep, burn = ["sleep", "1000"], ["python3", "-c", "while True: pass"]
    # A child in a session of its own, as ZooKeeper's is, is not reached through the process group.
    apart = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'], start_new_session=True)"
    server = ServerProcess("cluster", Launch(sleep, {}, beside=[burn, ["python3", "-c", apart]]), tmp_path / "out")
    try:
        _wait(lambda: server.cpu_seconds() > 0.3 and len(_children()) == 4)
        server.check_alive()
        everyone = _children()
    finally:
        server.kill()
    _wait(lambda: not any(_is_running(pid) for pid in everyone))


def test_a_cluster_that_lost_one_of_its_processes_is_reported(tmp_path: Path) -> None:
    launch = Launch(["sleep", "1000"], {}, beside=[["sh", "-c", "echo no port; exit 4"]])
    server = ServerProcess("cluster", launch, tmp_path / "out")
    try:
        _wait(lambda: "no port" in (tmp_path / "out").read_text() and len(_running(_children())) == 1)
        with pytest.raises(BenchFailure, match="cluster ended with code 4; its last words:\nno port"):
            server.check_alive()
    finally:
        server.stop()


def _children() -> list[int]:
    """Of this process, with theirs."""
    return _running(process_tree(os.getpid())[1:])


def _running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if _is_running(pid)]


def _is_running(pid: int) -> bool:
    """A zombie that nobody has collected yet does not count."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
