"""Which runs are under way on this machine, so that their hosts and disks do not clash and can be cleared away.

A acquire_run_lock is a file with the process id of the harness and the folder of the run, locked for as long as the harness
lives. When it is gone, however it went, the lock is free, and `leftover_locks` names what it left behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RUNS_MAX = 250  # the third number of an address is the run's


@dataclass(slots=True)
class RunLock:
    number: int
    folder: Path
    descriptor: int

    def release(self) -> None:
        path_of(self.number).unlink()
        os.close(self.descriptor)


def acquire_run_lock(folder: Path) -> RunLock:
    """The first number that nobody has; one whose harness is gone is free only when it was cleared away."""
    for number in range(1, RUNS_MAX):
        try:
            descriptor = os.open(path_of(number), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        except FileExistsError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, json.dumps({"process": os.getpid(), "folder": str(folder)}).encode())
        return RunLock(number, folder, descriptor)
    raise RuntimeError("too many runs at a time, or left behind: python -m tests.chaos --clean")


def leftover_locks() -> Iterator[RunLock]:
    """Claims whose harness is gone, locked for whoever clears them away."""
    for path in sorted(path_of(0).parent.glob("*.json")):
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        text = path.read_text()  # empty if the harness died before it wrote
        folder = Path(json.loads(text)["folder"]) if text else Path(tempfile.gettempdir(), "no such run")
        yield RunLock(int(path.stem), folder, descriptor)


def path_of(number: int) -> Path:
    folder = Path(tempfile.gettempdir()) / "headrace-chaos-claims"
    folder.mkdir(exist_ok=True)
    return folder / f"{number}.json"
