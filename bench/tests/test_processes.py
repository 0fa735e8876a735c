"""CPU time and memory of server processes, and that all of them are stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import processes
from bench.failure import BenchFailure
from bench.processes import Launch, ServerProcess, process_tree

_WAIT_SECONDS_MAX = 20


def test_cpu_and_memory_include_children(tmp_path: Path) -> None:
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


def test_kernel_threads_that_exit_do_not_reduce_the_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    per_second = os.sysconf("SC_CLK_TCK")
    before = {11: 5 * per_second, 12: 1_000 * per_second}
    now = {11: 6 * per_second, 13: 2 * per_second}
    monkeypatch.setattr(processes, "kernel_cpu_ticks", lambda: now)
    assert processes.kernel_cpu_seconds_since(before) == 3.0


def test_a_thread_that_exits_during_the_scan_hides_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerProcess("sleeper", Launch(["sh", "-c", "sleep 1000; true"], {}), tmp_path / "out")
    threads = Path.iterdir
    try:
        _wait(lambda: len(process_tree(server.pid)) == 2)
        monkeypatch.setattr(Path, "iterdir", lambda path: [path / "0", *threads(path)])
        assert len(process_tree(server.pid)) == 2
    finally:
        monkeypatch.undo()
        server.stop()


def test_a_server_that_exited_is_reported_with_the_end_of_its_output(tmp_path: Path) -> None:
    server = ServerProcess("mayfly", Launch(["sh", "-c", "echo no disk; exit 3"], {}), tmp_path / "out")
    _wait(lambda: not _is_running(server.pid))
    with pytest.raises(BenchFailure, match="mayfly exited with code 3; the end of its output:\nno disk"):
        server.check_alive()


def test_all_processes_of_a_cluster_are_measured_and_stopped(tmp_path: Path) -> None:
    sleep, burn = ["sleep", "1000"], ["python3", "-c", "while True: pass"]
    # A child in another session, such as ZooKeeper's, is not in the process group.
    other_session = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'], start_new_session=True)"
    )
    server = ServerProcess(
        "cluster", Launch(sleep, {}, other_commands=[burn, ["python3", "-c", other_session]]), tmp_path / "out"
    )
    try:
        _wait(lambda: server.cpu_seconds() > 0.3 and len(_children()) == 4)
        server.check_alive()
        pids = _children()
    finally:
        server.kill()
    _wait(lambda: not any(_is_running(pid) for pid in pids))


def test_a_cluster_with_an_exited_process_is_reported(tmp_path: Path) -> None:
    launch = Launch(["sleep", "1000"], {}, other_commands=[["sh", "-c", "echo no port; exit 4"]])
    server = ServerProcess("cluster", launch, tmp_path / "out")
    try:
        _wait(lambda: "no port" in (tmp_path / "out").read_text() and len(_running(_children())) == 1)
        with pytest.raises(BenchFailure, match="cluster exited with code 4; the end of its output:\nno port"):
            server.check_alive()
    finally:
        server.stop()


def _children() -> list[int]:
    """Return the running descendants of this process."""
    return _running(process_tree(os.getpid())[1:])


def _running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if _is_running(pid)]


def _is_running(pid: int) -> bool:
    """A zombie process does not count."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
