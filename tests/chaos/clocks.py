"""Wrong wall clocks for processes, adjustable while the processes run.

A small library (`wrong_clock.c`) is compiled once for each run and loaded into the processes by LD_PRELOAD. It adds the
number in a mapped file to the wall clock.
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
    """A wall clock that is correct until `set_wrong` is called."""

    def __init__(self, library: Path, path: Path) -> None:
        self._library, self._path = library, path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_OFFSET.pack(0))

    def on(self, host: Host) -> Host:
        """Return the same host, with this clock for its processes."""
        variables = (f"LD_PRELOAD={self._library}", f"HEADRACE_WRONG_CLOCK={self._path}")
        return replace(host, prefix=(*host.prefix, "env", *variables))

    def set_wrong(self, seconds: float) -> None:
        """Make the clock jump for all processes at once; 0 corrects it."""
        with self._path.open("r+b") as file:
            file.write(_OFFSET.pack(int(seconds * 1e9)))


def compile_library(folder: Path) -> Path:
    library = folder / "wrong_clock.so"
    command = [COMPILER, "-shared", "-fPIC", "-O2", "-Wall", "-o", str(library), str(SOURCE), "-ldl", "-pthread"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def unavailable_reason(folder: Path) -> str | None:
    """Return why clocks cannot be set wrong on this machine; None if they can."""
    if shutil.which(COMPILER) is None:
        return f"{COMPILER} is not installed"
    try:
        compile_library(folder)
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}` failed: {error.stderr.strip()}"
    return None
