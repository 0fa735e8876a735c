"""What a server costs, read from /proc, and how it is started and ended.

A server may be several processes (a cluster is), and each of them a tree (RabbitMQ's is); CPU and memory are sums over
all of them. CPU of children that have ended is counted too, through the parent's cutime and cstime.

The kernel's own threads write back what a server left dirty, and sync for one that asks them to. Nobody is charged for
that, so it is a figure of its own: `kernel_cpu_ticks`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.failure import BenchFailure

_KERNEL_THREADS = 2  # the parent of them all
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Its data is thrown away, so no harm is done by not waiting for, say, a Kafka node whose fellow voters are gone.
_STOP_SECONDS_MAX = 10


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server is started: its command line and what it needs in its environment.

    `beside` are the further processes of a cluster. They are all started at once, and stopped in this order.
    """

    command: list[str]
    environment: dict[str, str]
    beside: Sequence[list[str]] = ()


class ServerProcess:
    """One server that we started; its output goes to a file, for the error message when it dies."""

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
                for command in (launch.command, *launch.beside)
            ]

    @property
    def pid(self) -> int:
        return self._processes[0].pid

    def check_alive(self) -> None:
        for process in self._processes:
            code = process.poll()
            if code is not None:
                tail = self._output.read_text(errors="replace")[-2000:]
                raise BenchFailure(f"{self.name} ended with code {code}; its last words:\n{tail}")

    def cpu_seconds(self) -> float:
        return sum(_cpu_ticks(pid) for pid in self._trees()) / _TICKS_PER_SECOND

    def rss_bytes(self) -> int:
        return sum(_status_bytes(pid, "VmRSS") for pid in self._trees())

    def peak_rss_bytes(self) -> int:
        """Since the start or the last `forget_peak`."""
        return sum(_status_bytes(pid, "VmHWM") for pid in self._trees())

    def forget_peak(self) -> None:
        for pid in self._trees():
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def kill(self) -> None:
        """SIGKILL to all of it: what a crash of the process leaves behind."""
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
            with suppress(ProcessLookupError):  # whatever it left behind in its process group
                os.killpg(process.pid, signal.SIGKILL)

    def _trees(self) -> list[int]:
        return [pid for process in self._processes if process.poll() is None for pid in process_tree(process.pid)]


def process_tree(root: int) -> list[int]:
    """The process and all its living descendants."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        try:
            threads = list(Path(f"/proc/{pid}/task").iterdir())
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.append(pid)
        for thread in threads:
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile: a JVM has many
                waiting.extend(int(child) for child in (thread / "children").read_text().split())
    return found


def _cpu_ticks(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # The name, in brackets, may hold blanks. After it comes field 3; utime to cstime are fields 14 to 17.
    fields = text.rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15])


def kernel_cpu_ticks() -> dict[int, int]:
    """Of each thread of the kernel's that there is now."""
    return {pid: _cpu_ticks(pid) for pid in process_tree(_KERNEL_THREADS)}


def kernel_cpu_seconds_since(before: Mapping[int, int]) -> float:
    """What they spent, but for those that have ended: they come and go."""
    now = kernel_cpu_ticks()
    return sum(ticks - before.get(pid, 0) for pid, ticks in now.items()) / _TICKS_PER_SECOND


def _status_bytes(pid: int, label: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(label + ":")), 0)
