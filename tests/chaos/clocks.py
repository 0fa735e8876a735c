"""A wall clock of its own for a process, which can be set wrong while the process runs.

A small library (`wrong_clock.c`) is compiled once for each run and loaded into the processes by LD_PRELOAD. It adds
the number in a file, which it has mapped, to the wall clock.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from struct import Struct

from tests.chaos.namespaces import Host

SOURCE = Path(__file__).with_name("wrong_clock.c")
COMPILER = "gcc"
_OFFSET = Struct("=q")


class WrongClock:
    """Right until `set_wrong` is called."""

    def __init__(self, library: Path, path: Path) -> None:
        self._library, self._path = library, path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_OFFSET.pack(0))

    def on(self, host: Host) -> Host:
        """The same host, where processes have this clock."""
        variables = (f"LD_PRELOAD={self._library}", f"HEADRACE_WRONG_CLOCK={self._path}")
        return replace(host, prefix=(*host.prefix, "env", *variables))

    def set_wrong(self, seconds: float) -> None:
        """All processes with this clock see the jump at once; 0 sets it right."""
        with self._path.open("r+b") as file:
            file.write(_OFFSET.pack(int(seconds * 1e9)))


def compile_library(folder: Path) -> Path:
    library = folder / "wrong_clock.so"
    command = [COMPILER, "-shared", "-fPIC", "-O2", "-Wall", "-o", str(library), str(SOURCE), "-ldl", "-pthread"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def unavailable_reason(folder: Path) -> str | None:
    """The reason why no clock can be set wrong here; None when they can."""
    if shutil.which(COMPILER) is None:
        return f"{COMPILER} is not installed"
    try:
        compile_library(folder)
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}` failed: {error.stderr.strip()}"
    return None
