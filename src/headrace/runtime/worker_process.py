"""Run long computations in a worker process, so that they delay neither the event loop nor other threads.

- The worker is a new interpreter, by default with the lowest priority. The first call starts it; it runs one call at a
  time and is stopped after it was idle for a while.
- It reads its calls from a pipe that only its parent holds. When the parent ends, in whatever way, the pipe is closed
  and the worker exits, even in the middle of a call.
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
from typing import IO, Any, TypeVar

from headrace.model.errors import RetriableError
from headrace.runtime.disk_threads import DiskThreads

T = TypeVar("T")


IDLE_SECONDS = 30.0
LOWEST_PRIORITY = 19
COLLECT_EVERY = 1_000_000  # objects: these calls create many, but no reference cycles
# The worker uses the parent's module search path, which may have changed since the parent was started.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from headrace.runtime import worker_process; worker_process.serve(int(sys.argv[2]))"
)
_LENGTH = Struct(">Q")


class WorkerDied(RetriableError):
    """The worker process ended before the call did. The call may be repeated."""


class WorkerProcess:
    """The parent's side: at most one worker, and a thread that waits for it."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS, niceness: int = LOWEST_PRIORITY) -> None:
        self._idle_seconds = idle_seconds
        self._niceness = niceness
        self._thread = DiskThreads(1, when_done=lambda: None)
        self._call_lock = asyncio.Lock()
        self._worker: subprocess.Popen[bytes] | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def run(self, work: Callable[..., T], args: tuple[object, ...], bytes_per_second: float) -> T:
        """Call `work(pace, *args)` in the worker. Raises WorkerDied, or what the call raised. Cancelling kills the
        worker.
        """
        async with self._call_lock:
            if self._idle is not None:
                self._idle.cancel()
            task = _WorkerTask(pickle.dumps((work, args, bytes_per_second)))
            try:
                is_done, outcome = await self._thread.run(self._do, (task,))
            except asyncio.CancelledError:
                task.is_abandoned = True
                self._kill()
                raise
            finally:
                self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, self._end_idle)
            if not is_done:
                raise outcome
            result: T = outcome
            return result

    def close(self) -> None:
        """Kill the worker. A later call starts a new one."""
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
            worker = self._worker = _start_worker(self._niceness)
        if task.is_abandoned:  # cancelled before there was a worker to kill
            worker.kill()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            _send(worker.stdin, task.job)
            response = _receive(worker.stdout)
            if response is None:
                raise EOFError
            is_done, value = pickle.loads(response)
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
                with suppress(BrokenPipeError):  # it was killed before it read the call
                    pipe.close()
            worker.wait()


class _WorkerTask:
    __slots__ = ("is_abandoned", "job")

    def __init__(self, job: bytes) -> None:
        self.job = job
        self.is_abandoned = False


def _start_worker(niceness: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(niceness)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C at the terminal is only for the parent
    )


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    """None at the end of the pipe."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    data = pipe.read(size)
    return data if len(data) == size else None


# The worker's side


def serve(niceness: int) -> None:
    """Run the calls from standard input until it is closed."""
    os.nice(niceness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(COLLECT_EVERY)
    responses = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of a call must not be taken for a response
    jobs: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    while True:
        _send(responses, _run(jobs.get()))


def _listen(jobs: SimpleQueue[bytes]) -> None:
    while (job := _receive(sys.stdin.buffer)) is not None:
        jobs.put(job)
    os._exit(0)


def _run(job: bytes) -> bytes:
    work, args, bytes_per_second = pickle.loads(job)
    try:
        return pickle.dumps((True, work(_IoPace(bytes_per_second), *args)))
    except Exception as error:  # the caller handles it, whatever it is
        response = pickle.dumps((False, error))
        pickle.loads(response)  # an error that cannot be unpickled ends the worker, whose traceback says why
        return response


class _IoPace:
    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._due = time.monotonic()

    def __call__(self, size_bytes: int) -> None:
        now = time.monotonic()
        self._due = max(self._due, now) + size_bytes / self._bytes_per_second
        if self._due > now + 0.01:  # shorter waits accumulate
            time.sleep(self._due - now)
