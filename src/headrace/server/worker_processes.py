"""Run several worker processes of one application, and reload them when its code changes.

    process i of N: the health port is i higher than that of the first one

- The processes share the messages, like workers on several hosts.
- With `reload`, all processes are stopped gracefully and started again when a Python file below the working directory
  changes. A process that cannot import its changed code exits, and is started again at the next change.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.server.child_process import HEADRACE, ChildProcess, print_line, run_children
from headrace.server.settings import show_address
from headrace.server.worker import WorkerSettings

_LOOK_SECONDS = 0.5
_EXTRA_STOP_SECONDS = 10.0  # to release the messages of handlers that did not end in time
_PORT_MAX = 65535
_SKIPPED = frozenset((".venv", "node_modules", "__pycache__"))


def run_worker_processes(settings: WorkerSettings, count: int, *, reload: bool) -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    try:
        settings.check()
        if settings.health is not None and settings.health[1] and settings.health[1] + count - 1 > _PORT_MAX:
            raise InvalidConfig(f"--health requires {count} consecutive ports up to {_PORT_MAX}; use a smaller port")
        children = [
            ChildProcess(
                f"worker {number}",
                command(settings, number),
                settings.grace_seconds + _EXTRA_STOP_SECONDS,
                waits_for_restart=reload,
            )
            for number in range(count)
        ]
        return 0 if asyncio.run(run_children(children, _watch(children, reload=reload))) else 1
    except HeadraceError as error:
        print_line(f"error: {error.message}")
        return 1


def command(settings: WorkerSettings, number: int) -> list[str]:
    """Return the command line of one process."""
    options = {
        "--server": settings.server,
        "--concurrency": str(settings.concurrency),
        "--pool": str(settings.processes),
        "--grace": f"{settings.grace_seconds * 1000:.0f}ms",
        "--log-level": settings.log_level,
        "--log-format": settings.log_format,
    }
    if settings.health is not None:
        host, port = settings.health
        options["--health"] = show_address(host, port + number if port else 0)
    words = [*HEADRACE, "worker", settings.application, "--child"]
    words += [word for option in options.items() for word in option]
    return [*words, *(["--insecure"] if settings.insecure else [])]


async def _watch(children: Sequence[ChildProcess], *, reload: bool) -> None:
    for child in children:
        await child.is_ready.wait()
    sys.stdout.write(f"ready processes={len(children)}\n")
    sys.stdout.flush()
    before = changed_times(Path.cwd()) if reload else {}
    while reload:
        await asyncio.sleep(_LOOK_SECONDS)
        now = changed_times(Path.cwd())
        if now != before:
            names = sorted(path for path in now.keys() | before.keys() if now.get(path) != before.get(path))
            print_line(f"reloading: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''} changed")
            before = now
            for child in children:
                child.restart()


def changed_times(folder: Path) -> Mapping[str, int]:
    """The modification times of all Python files below the folder; hidden folders and environments are skipped."""
    times: dict[str, int] = {}
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(where, name)
                try:
                    times[os.path.relpath(path, folder)] = os.stat(path).st_mtime_ns
                except FileNotFoundError:
                    continue  # an editor replaces the file
    return times
