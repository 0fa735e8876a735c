"""Long work in a process of its own, so that neither the loop nor the interpreter's lock feels it.

The worker is a fresh interpreter of the lowest priority. It is started with the first work, does one piece of work at
a time, and is ended when there was none for a while. It reads its work from a pipe that only its parent holds: when the
parent ends, however that happens, the pipe does too, and with it the worker, even in the middle of its work.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from struct import Struct
from typing import IO, Any, Protocol, TypeVar

from headrace.model.errors import RetriableError
from headrace.runtime.disk_threads import DiskThreads

T = TypeVar("T")

IDLE_SECONDS = 30.0
LOWEST_PRIORITY = 19
COLLECT_EVERY = 1_000_000  # objects: work of this kind makes many, and no cycles of them
# Modules are looked for where the parent does, which may have added folders since it was started.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from headrace.runtime import worker_process; worker_process.serve()"
)
_LENGTH = Struct(">Q")


class WorkerDied(RetriableError):
    """The process that did this work ended before its work did; it may be done again."""


class IoPace(Protocol):
    """Keeps work within its share of the disk."""

    def __call__(self, size_bytes: int) -> None:
        """So much was read or written: wait as long as that ought to have taken."""


class WorkerProcess:
    """The parent's side: one worker at most, and a thread that waits for it."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._thread = DiskThreads(1, when_done=lambda: None)
        self._turn: asyncio.Lock | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self._idle: asyncio.TimerHandle | None = None

    @property
    def process_id(self) -> int | None:
        """Of the worker, if there is one now."""
        return self._worker.pid if self._worker is not None else None

    async def run(self, work: Callable[..., T], args: tuple[object, ...], bytes_per_second: float) -> T:
        """Call `work(pace, *args)` there; raises WorkerDied, or what that raised. Cancelling it kills the worker."""
        if self._turn is None:
            self._turn = asyncio.Lock()
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
            task = _WorkerTask(pickle.dumps((work, args, bytes_per_second)))
            try:
                is_done, answer = await self._thread.run(self._do, (task,))
            except asyncio.CancelledError:
                task.is_abandoned = True
                self._kill()
                raise
            finally:
                self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, self._end_idle)
            if not is_done:
                raise answer
            result: T = answer
            return result

    def close(self) -> None:
        """End the worker, whatever it does. The next work would start another."""
        if self._idle is not None:
            self._idle.cancel()
        self._kill()
        self._thread.close()
        self._end()

    def _kill(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.kill()

    def _end_idle(self) -> None:
        self._thread.run(self._end, ())

    # In the thread

    def _do(self, task: _WorkerTask) -> tuple[bool, Any]:
        worker = self._worker
        if worker is None:
            worker = self._worker = _start_worker()
        if task.is_abandoned:  # while there was no worker yet that could have been killed
            worker.kill()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            _send(worker.stdin, task.job)
            answer = _receive(worker.stdout)
            if answer is None:
                raise EOFError
            is_done, value = pickle.loads(answer)
        except (OSError, EOFError, pickle.PickleError) as error:
            worker.kill()
            self._end()
            raise WorkerDied(f"the worker process {worker.pid} ended with {worker.returncode}") from error
        return is_done, value

    def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            for pipe in (worker.stdin, worker.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):  # it was killed before it had read its work
                    pipe.close()
            worker.wait()


class _WorkerTask:
    __slots__ = ("is_abandoned", "job")

    def __init__(self, job: bytes) -> None:
        self.job = job
        self.is_abandoned = False


def _start_worker() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C at the terminal is for the parent
    )


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    """None at the end."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    data = pipe.read(size)
    return data if len(data) == size else None


# The worker's side


def serve() -> None:
    """Do what comes in by standard input, until that ends."""
    os.nice(LOWEST_PRIORITY)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(COLLECT_EVERY)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the work may print must not look like an answer
    jobs: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    while True:
        _send(answers, _answer(jobs.get()))


def _listen(jobs: SimpleQueue[bytes]) -> None:
    while (job := _receive(sys.stdin.buffer)) is not None:
        jobs.put(job)
    os._exit(0)


def _answer(job: bytes) -> bytes:
    work, args, bytes_per_second = pickle.loads(job)
    try:
        return pickle.dumps((True, work(_IoPace(bytes_per_second), *args)))
    except Exception as error:  # whatever it is, it belongs to the one who waits
        answer = pickle.dumps((False, error))
        pickle.loads(answer)  # one that cannot be read back ends the worker, and its traceback says why
        return answer


class _IoPace:
    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._due = time.monotonic()

    def __call__(self, size_bytes: int) -> None:
        now = time.monotonic()
        self._due = max(self._due, now) + size_bytes / self._bytes_per_second
        if self._due > now + 0.01:  # shorter waits are gathered
            time.sleep(self._due - now)
