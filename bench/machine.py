"""Describe the machine that figures were measured on, and prepare it: hardware, versions, commit, page cache."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from bench.cache import run_tool
from bench.failure import BenchFailure
from bench.load import librdkafka_version

_CHUNK = bytes(1 << 20)


def machine_facts(base: Path) -> dict[str, str]:
    return {
        "cores": str(os.cpu_count()),
        "processor": _first(Path("/proc/cpuinfo"), "model name"),
        "memory": _first(Path("/proc/meminfo"), "MemTotal"),
        "kernel": platform.release(),
        "file system": _file_system(base),
        "python": sys.version.split()[0],
        "librdkafka": librdkafka_version(),
        "load average at start": f"{os.getloadavg()[0]:.2f}",
        "commit": _commit(),
    }


def _first(path: Path, label: str) -> str:
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == label), "unknown")


def _file_system(folder: Path) -> str:
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    containing = [mount for mount in mounts if folder.resolve().is_relative_to(mount[0])]
    return max(containing, key=lambda mount: len(mount[0]))[1]


def _commit() -> str:
    here = Path(__file__).parent
    try:
        commit = run_tool(["git", "rev-parse", "HEAD"], cwd=here).strip()
        changed = run_tool(["git", "status", "--porcelain", "--untracked-files=no"], cwd=here).strip()
    except BenchFailure:
        return "none"
    return commit + (" with changes" if changed else "")


def warm_page_cache(base: Path, size_bytes: int) -> None:
    """Write and remove a file of this size. In a virtual machine the first access to a page costs several times as much
    as later ones, which would be charged to the first peer that is measured."""
    path = base / "first-touch"
    try:
        with path.open("wb", buffering=0) as file:
            for _ in range(size_bytes // len(_CHUNK)):
                file.write(_CHUNK)
            os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)
