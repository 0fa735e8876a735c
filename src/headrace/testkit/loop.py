"""A seeded event loop in virtual time: the same seed gives the same run, and an hour passes in milliseconds.

Time hardly moves while anything can run, then jumps to the next timer. There are no threads, no descriptors.
Ready callbacks run first in, first out, as asyncio promises; `shuffle` breaks that promise to look for races,
so treat what it finds as a hint.

It rests on private parts of `BaseEventLoop` (`_ready`, `_stopping`, `_run_once`) and of its handles, the same in Python
3.11 to 3.13; its tests pin them.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TURN_SECONDS = 1e-6  # each iteration takes some time; otherwise a task that polls would stop the clock


class HostRun:
    """One run of one host: owns all tasks and callbacks that begin inside it."""

    def __init__(self) -> None:
        self.ended = False


_current_run: ContextVar[HostRun | None] = ContextVar("host_run", default=None)
_NO_HOST = Context()


class Deadlock(RuntimeError):
    """Every task is waiting, and no timer is set that could resume one."""


def run(seed: int, main: Callable[[SimLoop], Coroutine[Any, Any, T]], *, shuffle: bool = False) -> T:
    """Run `main(loop)` on a new simulated loop to its end; tasks that are left are cancelled."""
    loop = SimLoop(seed, shuffle=shuffle)
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.finish()


class SimLoop(asyncio.BaseEventLoop):
    _ready: deque[asyncio.Handle]  # of the base class
    _stopping: bool

    def __init__(self, seed: int, *, shuffle: bool = False, start: float = 0.0) -> None:
        super().__init__()
        self.set_debug(False)  # debug mode reads the real clock to find slow callbacks
        self.set_task_factory(_make_task)
        self._random = Random(seed) if shuffle else None
        self._now = start
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []  # a heap
        self._timers_set = 0
        self._halted: BaseException | None = None
        self._serials = 0
        self._live_tasks: dict[asyncio.Task[Any], HostRun | None] = {}
        self._runs_ended = 0
        self._held: dict[HostRun, list[asyncio.Handle]] = {}  # callbacks of paused runs

    def __del__(self) -> None:
        pass  # it holds no real resources, so a loop that was not closed is no leak

    @property
    def halted(self) -> bool:
        return self._halted is not None

    def time(self) -> float:
        return self._now

    def halt(self, reason: BaseException) -> None:
        """Stop everything at once, as a power cut does: `run_until_complete` raises, and no task cleans up."""
        if self._halted is None:
            self._halted = reason
            for handle in self._ready:
                handle.cancel()
            self.stop()

    def begin(self, host_run: HostRun, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task that ends, with everything that it starts, when its run ends."""
        context = copy_context()
        context.run(_current_run.set, host_run)
        return context.run(self.create_task, coroutine, name=name)

    def end(self, host_run: HostRun) -> None:
        """Drop the tasks and callbacks of a run: they never continue, so none of them cleans up."""
        host_run.ended = True
        self._runs_ended += 1
        self._held.pop(host_run, None)
        for handle in (*self._ready, *(timer for _, _, timer in self._timers)):
            if _has_ended(handle):
                handle.cancel()

    def pause(self, host_run: HostRun, seconds: float) -> None:
        """Pause a run for some time, as SIGSTOP does; then everything that was due meanwhile runs at once."""
        assert host_run not in self._held, "paused already"
        self._held[host_run] = []
        self.call_later(seconds, self._resume, host_run, context=_NO_HOST)

    def skip(self, seconds: float) -> None:
        """Advance time at once without running anything: what a paused process sees of the world until its timers and
        callbacks run."""
        self._now += seconds

    def is_paused(self, host_run: HostRun) -> bool:
        return host_run in self._held

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        try:
            result = super().run_until_complete(future)
        except BaseException:
            if self._halted is not None:
                raise self._halted from self._halted.__cause__
            raise
        if self._halted is not None:
            raise self._halted
        return result

    def finish(self) -> None:
        """Cancel the remaining tasks, oldest first, and close the loop. After a halt none is left."""
        if self._halted is None:
            living = [task for task, host_run in self._live_tasks.items() if host_run is None or not host_run.ended]
            for task in living:
                task.cancel()
            if living:
                self.run_until_complete(asyncio.wait(living))
            self.run_until_complete(self.shutdown_asyncgens())
        self.close()
        for task in list(self._live_tasks):
            _drop_task(task)
        self._live_tasks.clear()

    def create_future(self) -> asyncio.Future[Any]:
        return _SimFuture(loop=self)

    def run_in_executor(self, *_: object) -> NoReturn:
        raise RuntimeError("a thread in a simulation: use Disk.run")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        failure = context.get("exception")
        if "handle" in context and _has_ended(context["handle"]):
            return
        if "handle" in context and failure is not None:
            self.halt(failure)  # in a simulation an exception in a callback is a finding, not a log line
        elif self._halted is None:
            super().call_exception_handler(context)

    def next_serial(self) -> int:
        self._serials += 1
        return self._serials

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold a reference to the task, so that garbage collection does not affect what runs."""
        self._live_tasks[task] = _current_run.get()
        task.add_done_callback(self._live_tasks.pop)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def _run_once(self) -> None:
        """As in the base class, but time advances instead of waiting. Timers of one moment fire in the order in which
        they were set."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if ready or self._stopping:
            self._now += TURN_SECONDS
        elif timers:
            self._now = max(timers[0][0], self._now + TURN_SECONDS)
        else:
            raise Deadlock("every task waits and no timer is set")
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        if self._held:
            self._put_aside()
        if self._random is not None and len(ready) > 1:
            self._shuffle(self._random)
        for _ in range(len(ready)):
            handle = ready.popleft()
            # A live run may have resumed a callback of an ended one.
            if not (handle._cancelled or (self._runs_ended and _has_ended(handle))):
                handle._run()

    def _put_aside(self) -> None:
        """Callbacks of a paused run wait until it resumes."""
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            self._held.get(_run_of(handle), self._ready).append(handle)  # type: ignore[arg-type]

    def _shuffle(self, random: Random) -> None:
        ready = list(self._ready)
        random.shuffle(ready)
        self._ready.clear()
        self._ready.extend(ready)

    def _resume(self, host_run: HostRun) -> None:
        self._ready.extend(self._held.pop(host_run, ()))

    def _write_to_self(self) -> None:
        pass


class _SimFuture(asyncio.Future[Any]):
    """Hashed by its order of creation: asyncio keeps futures in sets, whose order would depend on addresses."""

    def __init__(self, *, loop: SimLoop) -> None:
        super().__init__(loop=loop)
        self._serial = loop.next_serial()

    def __hash__(self) -> int:
        return self._serial


class _SimTask(asyncio.Task[Any]):
    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, loop: SimLoop, **options: Any) -> None:
        self._serial = loop.next_serial()  # before the base class, which puts the new task into a set
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self._serial


def _run_of(handle: asyncio.Handle) -> HostRun | None:
    context: Context = handle._context  # type: ignore[attr-defined]
    return context.get(_current_run)


def _has_ended(handle: asyncio.Handle) -> bool:
    run = _run_of(handle)
    return run is not None and run.ended


def _drop_task(task: asyncio.Task[Any]) -> None:
    """Drop a task that a halt left waiting now, not when the garbage collector finds it."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    assert coroutine is not None
    with suppress(BaseException):  # its world is gone, so its cleanup may fail in any way
        coroutine.close()


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> _SimTask:
    assert isinstance(loop, SimLoop)
    if loop.halted:
        coroutine.close()
        raise RuntimeError("the simulation was halted")
    task = _SimTask(coroutine, loop=loop, **options)
    loop.keep(task)
    return task
