"""Start and stop the processes of a server, and read their CPU time and memory from /proc.

- A server may consist of several processes (a cluster), and each of them of a tree (RabbitMQ); CPU and memory are sums
  over all of them. The CPU time of children that have exited is included through the parent's cutime and cstime.
- Kernel threads write back dirty pages and sync on behalf of a server. This CPU time is not attributed to any process,
  so it is a separate figure: `kernel_cpu_ticks`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from bench.failure import BenchFailure

_KERNEL_THREADS = 2  # the parent of all kernel threads
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# The data is discarded afterwards, so a process that does not stop (a Kafka node without a quorum) may be killed.
_STOP_SECONDS_MAX = 10


@dataclass(frozen=True, slots=True)
class Launch:
    """The command line of a server and its additional environment. `other_commands` are further processes of a cluster;
    all are started together and stopped in this order."""

    command: list[str]
    environment: dict[str, str]
    other_commands: Sequence[list[str]] = ()


class ServerProcess:
    """A running server. Its output goes to a file, the end of which is part of the error if it exits."""

    def __init__(self, name: str, launch: Launch, output: Path) -> None:
        self.name = name
        self._output = output
        self.started_at = time.monotonic()
        with output.open("ab") as log:
            self._processes = [
                subprocess.Popen(
                    command,
                    env={**os.environ, **launch.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                for command in (launch.command, *launch.other_commands)
            ]

    @property
    def pid(self) -> int:
        return self._processes[0].pid

    def check_alive(self) -> None:
        for process in self._processes:
            code = process.poll()
            if code is not None:
                tail = self._output.read_text(errors="replace")[-2000:]
                raise BenchFailure(f"{self.name} exited with code {code}; the end of its output:\n{tail}")

    def cpu_seconds(self) -> float:
        return sum(_cpu_ticks(pid) for pid in self._trees()) / _TICKS_PER_SECOND

    def rss_bytes(self) -> int:
        return sum(_status_bytes(pid, "VmRSS") for pid in self._trees())

    def peak_rss_bytes(self) -> int:
        """Return the peak since the start or the last `reset_peak_rss`."""
        return sum(_status_bytes(pid, "VmHWM") for pid in self._trees())

    def reset_peak_rss(self) -> None:
        for pid in self._trees():
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def kill(self) -> None:
        """Send SIGKILL to all processes, as in a crash."""
        for pid in self._trees():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def stop(self) -> None:
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        for process in self._processes:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
        self.kill()
        for process in self._processes:
            with suppress(ProcessLookupError):  # remaining processes of its group
                os.killpg(process.pid, signal.SIGKILL)

    def _trees(self) -> list[int]:
        return [pid for process in self._processes if process.poll() is None for pid in process_tree(process.pid)]


def process_tree(root: int) -> list[int]:
    """Return the process and all its running descendants."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        try:
            threads = list(Path(f"/proc/{pid}/task").iterdir())
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.append(pid)
        for thread in threads:
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has exited meanwhile
                waiting.extend(int(child) for child in (thread / "children").read_text().split())
    return found


def _cpu_ticks(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # The name, in parentheses, may contain spaces. Field 3 follows it; utime to cstime are fields 14 to 17.
    fields = text.rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15])


def kernel_cpu_ticks() -> dict[int, int]:
    """Return the CPU time of each kernel thread."""
    return {pid: _cpu_ticks(pid) for pid in process_tree(_KERNEL_THREADS)}


def kernel_cpu_seconds_since(before: Mapping[int, int]) -> float:
    """Return the CPU time that kernel threads have used since; threads that have exited are not counted."""
    now = kernel_cpu_ticks()
    return sum(ticks - before.get(pid, 0) for pid, ticks in now.items()) / _TICKS_PER_SECOND


def _status_bytes(pid: int, label: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(label + ":")), 0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts_connections(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
