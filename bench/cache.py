"""Fetch, build and cache peers and load generators, outside of the source tree."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

from bench.failure import BenchFailure


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "headrace-bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Return the cached folder `name`; `make` fills it once. The folder appears only when it is complete."""
    folder = cache_folder() / name
    if not folder.exists():
        part = Path(mkdtemp(prefix=f"{name}.", dir=cache_folder()))
        make(part)
        part.rename(folder)
    return folder


def run_tool(command: list[str], *, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """Run a build or download tool and return its output."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise BenchFailure(f"{command[0]} is not installed") from error
    if done.returncode != 0:
        raise BenchFailure(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}")
    return done.stdout


def install_package(name: str) -> None:
    """Install a Debian package, which requires root."""
    # The package must not start its own service: the harness starts and measures one itself.
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1", "SYSTEMD_OFFLINE": "1"}
    run_tool(["apt-get", "update"], environment=quiet)
    run_tool(["apt-get", "install", "-y", "--no-install-recommends", name], environment=quiet)
