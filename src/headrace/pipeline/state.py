"""What a pipeline's work folder tells: how it stands, and whether it was asked to stop.

    status.json     how the present or the last run stands; replaced in one step
    stop            a request to stop, with the identity of the run that is meant; an older run's is void
    log             what the runs told, Java and all; whoever runs holds a lock on it, its Java included
    job/            the job's own: checkpoints and the like

A run that was killed cannot say so. Its process is named in status.json with the boot of the host and the time of its
start, so that nobody takes another process of the same number for it: a run whose process is gone has died.
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

UNDER_WAY: Final = ("running", "stopping")
LOG_BYTES_MAX: Final = 16 << 20


class PipelineAlreadyRunning(HeadraceError):
    """The pipeline is run by another process."""


class StateUnreadable(HeadraceError):
    """A work folder's status.json is not what a runner wrote."""


class Process(msgspec.Struct, frozen=True):
    """One process of one boot of one host; `started` is in ticks since the boot, where that can be known."""

    host: str
    boot: str
    pid: int
    started: str

    @classmethod
    def own(cls) -> Process:
        pid = os.getpid()
        return cls(socket.gethostname(), _boot(), pid, _started(pid))

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def lives(self) -> bool:
        """Whether it is there; asked of a process of another host, it is taken to be."""
        if not self.is_here:
            return True
        if self.boot != _boot():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # somebody else's, so it is there
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
        return self.state in UNDER_WAY


class WorkFolder:
    """The folder of one pipeline, as its runner and those who watch it see it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log"
        self.job = path / "job"
        self._status = path / "status.json"
        self._stop = path / "stop"

    def status(self) -> Status | None:
        """How it stands; None if it never ran. A run whose process is gone has died."""
        try:
            found = msgspec.json.decode(self._status.read_bytes(), type=Status)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise StateUnreadable(
                f"{self._status} cannot be read: {error}; remove it, and it is written anew"
            ) from None
        if found.is_active and not found.process.lives:
            return msgspec.structs.replace(found, state="died")
        if found.state == "running" and self.is_stop_requested(found.process):
            return msgspec.structs.replace(found, state="stopping")
        return found

    def keep(self, status: Status) -> None:
        scratch = self._status.with_suffix(".new")
        scratch.write_bytes(msgspec.json.format(msgspec.json.encode(status)))
        scratch.replace(self._status)

    def request_stop_of(self, process: Process) -> None:
        scratch = self._stop.with_suffix(".new")
        scratch.write_bytes(msgspec.json.encode(process))
        scratch.replace(self._stop)

    def is_stop_requested(self, process: Process) -> bool:
        try:
            return msgspec.json.decode(self._stop.read_bytes(), type=Process) == process
        except (FileNotFoundError, msgspec.MsgspecError):
            return False

    def clear_stop(self) -> None:
        self._stop.unlink(missing_ok=True)

    def lock(self) -> int | None:
        """Make the folder and take it: the descriptor of its log, which holds the lock as long as anybody has it open.

        None if somebody else has it. It is the log because Java gets that as its output, and Java may outlive a
        runner that was killed by the second that it takes to notice.
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
    # The name stands in parentheses and may hold anything; behind it the state, and as the 20th word the start.
    words = text.rpartition(")")[2].split()
    return "" if words[0] == "Z" else words[19]
