"""The processes of the clients, by name, and their output in one folder."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from tests.chaos.namespaces import Host
from tests.chaos.nodes import WITH_PARENT
from tests.chaos.transcript import Transcript
from tests.compat.time_limit import LIBRARY_HUNG

ROOT = Path(__file__).parents[2]
STALL_SECONDS = 120.0
"""How long a client that catches up may make no progress. It is longer than the library of a copier may hang before the
copier is restarted (`TRANSACTION_SECONDS` in `tests/compat/copier.py`)."""
POLL_SECONDS = 0.5


class Stuck(AssertionError):
    """A client makes no progress although all faults are healed."""


class Processes:
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._starts: dict[str, tuple[Host, Sequence[str]]] = {}
        self.libraries_hung = 0
        """how many clients were restarted because a call of their library did not return"""

    def launch(self, host: Host, name: str, module: Sequence[str]) -> Path:
        """Run a module with arguments; return the path of its output, to which a restart appends."""
        return self.launch_command(host, name, [sys.executable, "-m", *module])

    def launch_command(self, host: Host, name: str, program: Sequence[str]) -> Path:
        """Run any program; return the path of its output, to which a restart appends."""
        if name in self._running and self.exit_code(name) == LIBRARY_HUNG:
            self.libraries_hung += 1
        self._starts[name] = host, program
        command = [*host.prefix, *WITH_PARENT, *program]
        out_path = self._folder / f"{name}.jsonl"
        with out_path.open("ab") as out, self.log_path(name).open("ab") as log:
            self._running[name] = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
        return out_path

    def restart(self, name: str) -> None:
        """Restart a client that has ended."""
        host, program = self._starts[name]
        self.launch_command(host, name, program)

    def restart_hung(self, name: str) -> None:
        """Restart a client that ended because its library hung."""
        if self.exit_code(name) == LIBRARY_HUNG:
            self.restart(name)

    def log_path(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def exit_code(self, name: str) -> int | None:
        """Return the exit code; None if the process is running."""
        return self._running[name].poll()

    def read_on(self, transcripts: Mapping[str, Transcript], restarted: Collection[int] = ()) -> None:
        """Read the new output of these clients; fail if one has ended by itself.

        `restarted`: exit codes after which the caller restarts a client. A client may end like this between the
        caller's check and this one; the caller's next round restarts it.
        """
        for name, transcript in transcripts.items():
            transcript.read_on()
            code = self.exit_code(name)
            assert code in (None, 0, *restarted), f"{name} ended with exit code {code}; see {self.log_path(name)}"

    def stop(self, names: Iterable[str], patience_seconds: float) -> None:
        """Send SIGTERM to all, and wait until they have ended."""
        stopped = [*names]
        for name in stopped:
            self._running[name].terminate()
        for name in stopped:
            try:
                self._running[name].wait(patience_seconds)
            except subprocess.TimeoutExpired:
                raise Stuck(f"{name} did not end within {patience_seconds:.0f} s of SIGTERM") from None

    def kill(self) -> None:
        """Kill all running processes."""
        for process in self._running.values():
            process.kill()
            process.wait()


class StallTimer:
    """Raises `Stuck` when a number, which grows with the progress of a client, did not grow for `stall_seconds`.

    There is no limit for the whole: a client that has to catch up with a long backlog on a slow machine may take long.
    """

    def __init__(self, goal: str, stall_seconds: float = STALL_SECONDS) -> None:
        self._goal, self._stall_seconds = goal, stall_seconds
        self._best: float | None = None
        self._grew_at = time.monotonic()

    def check(self, progress: float, state: str) -> None:
        now = time.monotonic()
        if self._best is None or progress > self._best:
            self._best, self._grew_at = progress, now
        elif now > self._grew_at + self._stall_seconds:
            raise Stuck(f"no progress for {self._stall_seconds:.0f} s until {self._goal}: {state}")


def wait_drained(
    condition: Callable[[], bool],
    goal: str,
    progress: Callable[[], float],
    state: Callable[[], str],
    stall_seconds: float = STALL_SECONDS,
) -> None:
    """Wait until the condition holds; fail when there is no progress. All faults must be healed."""
    timer = StallTimer(goal, stall_seconds)
    while not condition():
        timer.check(progress(), state())
        time.sleep(POLL_SECONDS)
