"""Locks of the runs on this machine, so that their hosts and disks do not clash and can be removed.

A lock is a file with the process id of the harness and the folder of the run, locked while the harness lives. After the
harness has ended in any way, the lock is free, and `leftover_locks` yields it.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RUNS_MAX = 250  # the run number is the third number of addresses


@dataclass(slots=True)
class RunLock:
    number: int
    folder: Path
    descriptor: int

    def release(self) -> None:
        path_of(self.number).unlink()
        os.close(self.descriptor)


def acquire_run_lock(folder: Path) -> RunLock:
    """Acquire the first free run number. That of a dead harness is free only after its remains were removed."""
    for number in range(1, RUNS_MAX):
        try:
            descriptor = os.open(path_of(number), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        except FileExistsError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, json.dumps({"process": os.getpid(), "folder": str(folder)}).encode())
        return RunLock(number, folder, descriptor)
    raise RuntimeError("all run numbers are taken; remove killed runs with: python -m tests.chaos --clean")


def leftover_locks() -> Iterator[RunLock]:
    """Yield the locks of dead harnesses, locked for the caller, who removes their remains."""
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
