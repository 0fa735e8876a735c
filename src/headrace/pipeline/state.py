"""The work folder of a pipeline: status of the last run, stop requests, lock and log.

    status.json     the status of the current or last run; replaced atomically
    stop            a stop request with the identity of the run; a request for an earlier run has no effect
    log             output of the runs, including Java's; a run holds a lock on it, and so does its Java process
    job/            state of the job: checkpoints and the like

status.json identifies the process of a run by host, boot, pid and start time, so that a reused pid is not mistaken for
it. A run whose process is gone, for example after a kill, has died.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from pathlib import Path
from typing import Final, Literal

import msgspec

from headrace.model.errors import HeadraceError
from headrace.pipeline.job import JobProgress
from headrace.runtime.permissions import FILE_MODE, FOLDER_MODE

State = Literal["running", "stopping", "done", "stopped", "failed", "died"]

ACTIVE_STATES: Final = ("running", "stopping")
LOG_BYTES_MAX: Final = 16 << 20


class PipelineAlreadyRunning(HeadraceError):
    """Another process runs the pipeline."""


class StateUnreadable(HeadraceError):
    """The status.json of a work folder cannot be decoded."""


class Process(msgspec.Struct, frozen=True):
    """The identity of a process; `started` is in ticks since the boot, empty where that is unknown."""

    host: str
    boot: str
    pid: int
    started: str

    @classmethod
    def own(cls) -> Process:
        pid = os.getpid()
        return cls(socket.gethostname(), _boot(), pid, _started(pid))

    @property
    def is_alive(self) -> bool:
        """Whether the process exists; a process of another host is assumed to."""
        if self.host != socket.gethostname():
            return True
        if self.boot != _boot():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it exists and belongs to another user
            pass
        return self.started == _started(self.pid)


class Status(msgspec.Struct, frozen=True):
    name: str
    job: str
    mode: str
    state: State
    process: Process
    started_ms: int
    updated_ms: int
    file: str = ""
    brokers: str = ""
    master: str = ""
    progress: JobProgress | None = None
    summary: str = ""
    figures: dict[str, int | float | str] = {}

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE_STATES


class WorkFolder:
    """The work folder of one pipeline, for its runner and for `headrace pipeline status` and `stop`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log"
        self.job = path / "job"
        self.status_file = path / "status.json"
        self._stop = path / "stop"

    def status(self) -> Status | None:
        """The status of the last run; None if the pipeline never ran. A run whose process is gone has died."""
        try:
            found = msgspec.json.decode(self.status_file.read_bytes(), type=Status)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise StateUnreadable(
                f"{self.status_file} cannot be read: {error}; remove it, and the next run writes it again"
            ) from None
        if found.is_active and not found.process.is_alive:
            return msgspec.structs.replace(found, state="died")
        if found.state == "running" and self.is_stop_requested(found.process):
            return msgspec.structs.replace(found, state="stopping")
        return found

    def write_status(self, status: Status) -> None:
        _replace(self.status_file, msgspec.json.format(msgspec.json.encode(status)))

    def request_stop_of(self, process: Process) -> None:
        _replace(self._stop, msgspec.json.encode(process))

    def is_stop_requested(self, process: Process) -> bool:
        try:
            return msgspec.json.decode(self._stop.read_bytes(), type=Process) == process
        except (FileNotFoundError, msgspec.MsgspecError):
            return False

    def clear_stop(self) -> None:
        self._stop.unlink(missing_ok=True)

    def lock(self) -> int | None:
        """Create and lock the folder. Returns the descriptor of its log, or None if another process holds the lock.

        The lock is on the log because Java inherits that as its output: it is held until both have closed the
        descriptor, and Java may outlive a killed runner by about a second.
        """
        self.path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        self.job.mkdir(FOLDER_MODE, exist_ok=True)
        descriptor = os.open(self.log, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if os.fstat(descriptor).st_size > LOG_BYTES_MAX:
            shutil.copyfile(self.log, self.log.with_suffix(".old"))
            os.ftruncate(descriptor, 0)
        return descriptor


def _replace(path: Path, data: bytes) -> None:
    scratch = path.with_suffix(".new")
    scratch.write_bytes(data)
    scratch.replace(path)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return ""


def _started(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The command name is in parentheses and may contain any character. The state and, as 20th word, the start follow.
    words = text.rpartition(")")[2].split()
    return "" if words[0] == "Z" else words[19]
