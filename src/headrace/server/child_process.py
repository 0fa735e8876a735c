"""Supervise a child process: start it again when it exits, and let it end when this process ends.

- A child that exits is restarted, after a pause that grows while it keeps exiting shortly after its start; after three
  such exits in a row, all children are stopped. With `waits_for_restart`, it is restarted on request only.
- The standard input of a child is a pipe from this process: when this process ends for any reason, the child reads the
  end of the pipe (`stop_with_parent`) and shuts down gracefully.
- The child has a session of its own: Ctrl-C goes to this process only, which then stops its children.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from headrace.runtime.clock import SystemClock
from headrace.runtime.tasks import wait_until_set

QUICK_EXIT_SECONDS = 10.0
QUICK_EXITS_MAX = 3
BACK_OFF_SECONDS = 0.5
ORDERLY_EXIT_CODES = (0, -signal.SIGTERM)
"""The exit statuses of a child that was requested to stop; SIGTERM kills it if its handler is not installed yet."""

# -P: do not import modules from the working directory.
HEADRACE = (sys.executable, "-P", "-c", "import sys; from headrace.cli.main import main; sys.exit(main())")
"""The command line of this installation's `headrace`."""


class ChildProcess:
    """`ready_fields` are the key=value pairs of its last `ready` line."""

    def __init__(
        self, name: str, command: Sequence[str], stop_seconds: float, *, waits_for_restart: bool = False
    ) -> None:
        self.is_ready = asyncio.Event()
        self.ready_fields: dict[str, str] = {}
        self._name = name
        self._command = command
        self._stop_seconds = stop_seconds
        self._waits_for_restart = waits_for_restart
        self._restart = asyncio.Event()
        self._clock = SystemClock()

    def restart(self) -> None:
        """Stop the child gracefully, and start it again."""
        self._restart.set()

    async def supervise(self, stop: asyncio.Event) -> bool:
        """Run and restart it until all children are stopped; return whether it then shut down gracefully."""
        quick_exits = 0
        while True:
            started = self._clock.monotonic()
            status = await self._run(stop)
            if stop.is_set():
                return status in ORDERLY_EXIT_CODES
            if self._waits_for_restart and not self._restart.is_set():
                print_line(f"warning: {self._name} exited, status={status}; waiting for a change")
                await self._wait_for_request(stop)
            if self._restart.is_set():
                self._restart.clear()
                quick_exits = 0
                continue
            if stop.is_set():
                return True
            is_quick = self._clock.monotonic() - started < QUICK_EXIT_SECONDS
            quick_exits = quick_exits + 1 if is_quick else 0
            if quick_exits == QUICK_EXITS_MAX:
                print_line(f"error: {self._name} exited {quick_exits} times in a row, status={status}; stopping")
                stop.set()
                return False
            seconds = BACK_OFF_SECONDS * 2**quick_exits
            print_line(f"warning: {self._name} exited, status={status}; restarting it in {seconds:.1f} s")
            if await wait_until_set(stop, seconds):
                return True

    async def _run(self, stop: asyncio.Event) -> int:
        """Run it once; return its exit status."""
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        assert process.stdout is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_output(process.stdout))
            ended = group.create_task(process.wait())
            requested = group.create_task(self._wait_for_request(stop))
            await asyncio.wait((ended, requested), return_when=asyncio.FIRST_COMPLETED)
            requested.cancel()
            if not ended.done():
                await self._terminate(process, ended)
        return ended.result()

    async def _wait_for_request(self, stop: asyncio.Event) -> None:
        """Wait until the child is to be stopped or restarted."""
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(event.wait()) for event in (stop, self._restart)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def _terminate(self, process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
        with suppress(ProcessLookupError):
            process.terminate()
            await asyncio.wait((ended,), timeout=self._stop_seconds)
            if not ended.done():
                print_line(f"warning: {self._name} did not stop within {self._stop_seconds:.0f} s; killing it")
                process.kill()

    async def _read_output(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            text = line.decode(errors="replace")
            if not text.startswith("ready "):
                sys.stdout.write(text)
                sys.stdout.flush()
                continue
            self.ready_fields = dict(field.split("=", 1) for field in text.split()[1:])
            if self.is_ready.is_set():
                print_line(f"{self._name} is up again")
            self.is_ready.set()


async def run_children(children: Sequence[ChildProcess], background: Coroutine[Any, Any, None]) -> bool:
    """Supervise all children until SIGTERM or SIGINT; return whether all of them shut down gracefully. `background` is
    run meanwhile."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with asyncio.TaskGroup() as group:
        supervised = [group.create_task(child.supervise(stop)) for child in children]
        running = group.create_task(background)
        await stop.wait()
        running.cancel()
    return all(task.result() for task in supervised)


def stop_with_parent(stop: Callable[[], object]) -> None:
    """Call `stop` when the parent exits. It never writes to the pipe at stdin, so it is readable only at its end."""
    loop, pipe = asyncio.get_running_loop(), sys.stdin.fileno()

    def parent_has_ended() -> None:
        loop.remove_reader(pipe)
        stop()

    loop.add_reader(pipe, parent_has_ended)


def print_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
