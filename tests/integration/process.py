"""One real `headrace serve` process on free ports, which tests can kill and restart.

Ports stay the same after restarts, so that clients find the broker again. The output of the process is in its folder:
`ready.txt` (stdout of the latest start) and `broker.log` (stderr of all).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

PATIENCE_SECONDS = 60.0
"""The time limit of waits in tests; generous, because CI machines are slow and shared."""


class BrokerProcess:
    """A broker process that can be started, killed, terminated and restarted with the same data."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        data: Path | None = None,
        descriptors_max: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.data = data or folder / "data"
        self.settings = dict(settings or {})
        self.descriptors_max = descriptors_max
        self.options = options
        self.kafka_port, self.http_port = free_ports(2)
        self.address = f"127.0.0.1:{self.kafka_port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> BrokerProcess:
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        assert self._process is None, "the broker runs already"
        command = [] if self.descriptors_max is None else ["prlimit", f"--nofile={self.descriptors_max}"]
        command += [
            str(Path(sys.executable).with_name("headrace")),
            "serve",
            *("--data", str(self.data)),
            *("--kafka", self.address),
            *("--http", f"127.0.0.1:{self.http_port}"),
            *self.options,
        ]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        with self._ready_path.open("wb") as ready, self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=ready, stderr=log, start_new_session=True
            )

    def wait_ready(self) -> None:
        def ready() -> bool:
            exit_code = self.process.poll()
            assert exit_code is None, f"the broker ended with {exit_code}:\n{self.log_tail()}"
            lines = self._ready_path.read_text(errors="replace").splitlines()
            return any(line.startswith("ready") for line in lines)

        wait_until(ready, "the broker says ready")

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        self._process = None

    def terminate(self, patience_seconds: float = PATIENCE_SECONDS) -> int:
        """Stop the process with SIGTERM; the exit code must be 0."""
        self.process.send_signal(signal.SIGTERM)
        exit_code = self.process.wait(patience_seconds)
        self._process = None
        return exit_code

    def stop(self) -> None:
        """Kill the process, in any state."""
        if self._process is not None:
            self.kill()

    def wait_ended(self) -> int:
        exit_code = self.process.wait(PATIENCE_SECONDS)
        self._process = None
        return exit_code

    def restart(self) -> None:
        self.kill()
        self.start()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the broker does not run"
        return self._process

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def log_text(self) -> str:
        return self._log_path.read_text(errors="replace")

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:])

    def http_get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=PATIENCE_SECONDS) as response:
            return str(response.read().decode())

    def segment_files(self) -> list[Path]:
        """Return the non-empty log files of all partitions, including `__consumer_offsets`."""
        return sorted(path for path in self.data.glob("logs/*/*.log") if path.stat().st_size > 0)

    @property
    def _ready_path(self) -> Path:
        return self.folder / "ready.txt"

    @property
    def _log_path(self) -> Path:
        return self.folder / "broker.log"


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the condition holds; fail with `what` after the time limit."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain until {what}"
        time.sleep(0.02)


def free_ports(count: int) -> Iterable[int]:
    """Return free ports, bound at the same time so that they differ."""
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports


def outside_broker() -> str | None:
    """Return the address of an external broker (`HEADRACE_TEST_BROKER`), for example a real Kafka."""
    return os.environ.get("HEADRACE_TEST_BROKER")
