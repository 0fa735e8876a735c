"""The processes of the clients, by name, each on its host; what each prints is kept in one folder."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from tests.chaos.client import GAVE_UP
from tests.chaos.namespaces import Host
from tests.chaos.nodes import WITH_PARENT
from tests.chaos.transcript import Transcript

ROOT = Path(__file__).parents[2]
DRAIN_SECONDS = 600.0
"""Enough for copiers that are far behind because their library hung; see `tests/compat/copier.py`."""
LOOK_SECONDS = 0.5


class Stuck(AssertionError):
    """Something did not come to its end although nothing stood in its way any more."""


class Processes:
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._starts: dict[str, tuple[Host, Sequence[str]]] = {}
        self.given_up = 0

    def launch(self, host: Host, name: str, module: Sequence[str]) -> Path:
        """Run a module with its arguments; the path of what it prints, to which a later start adds."""
        return self.launch_command(host, name, [sys.executable, "-m", *module])

    def launch_command(self, host: Host, name: str, program: Sequence[str]) -> Path:
        """The same for any program."""
        self._starts[name] = host, program
        command = [*host.prefix, *WITH_PARENT, *program]
        out_path = self._folder / f"{name}.jsonl"
        with out_path.open("ab") as out, self.log_path(name).open("ab") as log:
            self._running[name] = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
        return out_path

    def restart(self, name: str) -> None:
        """Start a client anew that has ended."""
        host, program = self._starts[name]
        self.launch_command(host, name, program)

    def restart_given_up(self, name: str) -> None:
        """Start a client anew if it gave up its library, which hangs."""
        if self.exit_code(name) == GAVE_UP:
            self.given_up += 1
            self.restart(name)

    def log_path(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def exit_code(self, name: str) -> int | None:
        """None while it runs."""
        return self._running[name].poll()

    def read_on(self, transcripts: Mapping[str, Transcript], restarted: Collection[int] = ()) -> None:
        """Read what these clients have printed; fail if one has ended by itself.

        `restarted`: exit codes after which the caller starts a client again. A client may end so between the caller's
        check and this one; the caller's next round restarts it.
        """
        for name, transcript in transcripts.items():
            transcript.read_on()
            code = self.exit_code(name)
            assert code in (None, 0, *restarted), f"{name} ended with exit code {code}; see {self.log_path(name)}"

    def stop(self, names: Iterable[str], patience_seconds: float) -> None:
        """SIGTERM to all, and wait for their ends."""
        stopped = [*names]
        for name in stopped:
            self._running[name].terminate()
        for name in stopped:
            try:
                self._running[name].wait(patience_seconds)
            except subprocess.TimeoutExpired:
                raise Stuck(f"{name} did not end within {patience_seconds:.0f} s of SIGTERM") from None

    def kill(self) -> None:
        """Whatever still runs."""
        for process in self._running.values():
            process.kill()
            process.wait()


def wait_drained(condition: Callable[[], bool], what: str, instead: Callable[[], str]) -> None:
    """Until it holds, now that nothing stands in its way."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise Stuck(f"waited {DRAIN_SECONDS:.0f} s in vain until {what}: {instead()}")
        time.sleep(LOOK_SECONDS)
