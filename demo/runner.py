"""Print and run the commands of the demo, and check their results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

_WIDTH = 100
_COMMAND_SECONDS_MAX = 120
_READY_SECONDS_MAX = 20
_POLL_SECONDS = 0.2


class StepFailed(Exception):
    """A step did not have the expected result."""


class DemoRunner:
    """Runs commands in one folder, with the `headrace` command of this environment, against its own broker."""

    def __init__(self, folder: Path, out: TextIO) -> None:
        self.folder = folder
        self._out = out
        self._broker: subprocess.Popen[str] | None = None
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }

    def title(self, text: str) -> None:
        self._print(f"\n\n{text}\n{'-' * len(text)}")

    def explain(self, text: str) -> None:
        self._print("\n" + textwrap.fill(" ".join(text.split()), _WIDTH))

    def run(self, command: str, *, lines: int = 8) -> str:
        """Print and run a command, and print the first lines of its output."""
        self._print(f"\n  $ {command}")
        running = self._start(command, subprocess.STDOUT)
        with _killed_on_failure(running):
            output, _ = running.communicate(timeout=_COMMAND_SECONDS_MAX)
        return self._show(command, output, running.returncode, lines)

    def run_until(self, command: str, is_done: Callable[[], bool]) -> str:
        """Run a service until it has done its work, and return its output. Its log goes to a file."""
        self._print(f"\n  $ {command} 2>> service.log &")
        deadline = time.monotonic() + _COMMAND_SECONDS_MAX
        with (self.folder / "service.log").open("a") as log:
            running = self._start(f"exec {command}", log)
            with _killed_on_failure(running):
                while not is_done() and running.poll() is None and time.monotonic() < deadline:
                    time.sleep(_POLL_SECONDS)
                self._print("  $ kill %1")
                running.terminate()
                output, _ = running.communicate(timeout=_COMMAND_SECONDS_MAX)
        return self._show(command, output, running.returncode, 8)

    def query(self, command: str) -> list[dict[str, Any]]:
        """Run a command without printing it, and return its JSON output."""
        finished = subprocess.run(
            f"{command} -o json",
            shell=True,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS_MAX,
            check=True,
        )
        return [json.loads(line) for line in finished.stdout.splitlines()]

    def expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise StepFailed(f"{what}: {found!r} instead of {expected!r}")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def serve(self, kafka: int, http: int) -> None:
        """Start the broker in the background; `close` stops it."""
        self._environment["HEADRACE_SERVER"] = f"127.0.0.1:{kafka}"
        command = f"headrace serve --data data --kafka 127.0.0.1:{kafka} --http 127.0.0.1:{http}"
        self._print(f"\n  $ {command} &\n  $ export HEADRACE_SERVER=127.0.0.1:{kafka}")
        with (self.folder / "broker.log").open("w") as log:
            self._broker = subprocess.Popen(
                ["headrace", *command.split()[1:]],
                cwd=self.folder,
                env=self._environment,
                executable=Path(sys.executable).parent / "headrace",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        started = time.monotonic()
        assert self._broker.stdout is not None
        ready = self._broker.stdout.readline()
        if not ready.startswith("ready"):
            raise StepFailed("the broker did not start:\n" + (self.folder / "broker.log").read_text()[-2000:])
        self._print(f"    {ready.strip()}    (after {time.monotonic() - started:.1f} s)")

    def close(self) -> None:
        if self._broker is not None:
            self._broker.terminate()
            self._broker.communicate(timeout=_READY_SECONDS_MAX)
            self._broker = None

    def _start(self, command: str, errors: int | TextIO) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            shell=True,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )

    def _show(self, command: str, output: str, code: int, lines: int) -> str:
        printed = output.splitlines()
        shown = printed[:lines] + ([f"... and {len(printed) - lines} more lines"] if len(printed) > lines else [])
        if shown:
            self._print(textwrap.indent("\n".join(shown), "    "))
        if code != 0:
            raise StepFailed(f"`{command}` ended with {code}:\n" + "\n".join(printed[-20:]))
        return output

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)


@contextmanager
def _killed_on_failure(running: subprocess.Popen[str]) -> Iterator[None]:
    """Kill the process group on any error or interruption."""
    try:
        yield
    except BaseException:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        raise
