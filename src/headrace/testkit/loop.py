"""A seeded event loop in virtual time: the same seed gives the same run, and an hour passes in milliseconds.

Time hardly moves while anything can run, then jumps to the next timer. There are no threads, no descriptors.
Ready callbacks run first in, first out, as asyncio promises; `shuffle` breaks that promise to look for races,
so treat what it finds as a hint.

It rests on private fields of `BaseEventLoop` (`_ready`, `_selector`, `_run_once`), the same in Python 3.11 to
3.13; its tests pin them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

TURN_SECONDS = 1e-6  # a turn of the loop takes a little time, else one that polls would stop the clock


class Life:
    """What belongs to one run of one host: all tasks and callbacks that begin inside it."""

    def __init__(self) -> None:
        self.ended = False


_life: ContextVar[Life | None] = ContextVar("life", default=None)


class Deadlock(RuntimeError):
    """Every task waits, and no timer is set that could wake one."""


def run(seed: int, main: Callable[[SimLoop], Coroutine[Any, Any, T]], *, shuffle: bool = False) -> T:
    """Run `main(loop)` on a fresh simulated loop to its end; what it left running is cancelled."""
    loop = SimLoop(seed, shuffle=shuffle)
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.finish()


class SimLoop(asyncio.BaseEventLoop):
    _ready: deque[asyncio.Handle]  # of the base class
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: int, *, shuffle: bool = False, start: float = 0.0) -> None:
        super().__init__()
        self.set_debug(False)  # its slow-callback watch reads the real clock
        self.set_task_factory(_make_task)
        self._random = Random(seed) if shuffle else None
        self._now = start
        self._selector = self  # there is nothing real to select on
        self._halted: BaseException | None = None
        self._births = 0
        self._living: dict[asyncio.Task[Any], Life | None] = {}
        self._lives_ended = 0

    def __del__(self) -> None:
        pass  # it holds nothing real, so one that was not closed is no leak

    @property
    def halted(self) -> bool:
        return self._halted is not None

    def time(self) -> float:
        return self._now

    def halt(self, reason: BaseException) -> None:
        """Stop everything at once, as a power cut does: `run_until_complete` raises, no task cleans up."""
        if self._halted is None:
            self._halted = reason
            for handle in self._ready:
                handle.cancel()
            self.stop()

    def begin(self, life: Life, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task that, with all that it begins, ends when this life does."""
        context = copy_context()
        context.run(_life.set, life)
        return context.run(self.create_task, coroutine, name=name)

    def end(self, life: Life) -> None:
        """Drop the tasks and callbacks of a life: they just never go on, so nobody of them cleans up."""
        life.ended = True
        self._lives_ended += 1
        for handle in (*self._ready, *self._scheduled):
            if _has_ended(handle):
                handle.cancel()

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        try:
            result = super().run_until_complete(future)
        except BaseException:
            if self._halted is not None:
                raise self._halted from None
            raise
        if self._halted is not None:
            raise self._halted
        return result

    def finish(self) -> None:
        """Cancel what still runs, oldest first, and close the loop. After a halt nothing runs any more."""
        if self._halted is None:
            living = [task for task, life in self._living.items() if life is None or not life.ended]
            for task in living:
                task.cancel()
            if living:
                self.run_until_complete(asyncio.wait(living))
            self.run_until_complete(self.shutdown_asyncgens())
        self.close()
        for task in list(self._living):
            _bury(task)
        self._living.clear()

    def create_future(self) -> asyncio.Future[Any]:
        return _SimFuture(loop=self)

    def run_in_executor(self, *_: object) -> NoReturn:
        raise RuntimeError("a thread in a simulation: use Disk.run")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        failure = context.get("exception")
        if "handle" in context and _has_ended(context["handle"]):
            return
        if "handle" in context and failure is not None:
            self.halt(failure)  # a callback raised: in a simulation that is a finding, not a log line
        elif self._halted is None:
            super().call_exception_handler(context)

    def next_birth(self) -> int:
        self._births += 1
        return self._births

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold the task while it lives, so that the garbage collector has no say in what runs."""
        self._living[task] = _life.get()
        task.add_done_callback(self._living.pop)

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise Deadlock("every task waits and no timer is set")
        self._now += timeout or TURN_SECONDS
        return []

    def _run_once(self) -> None:
        if self._lives_ended:  # one that lives may have woken one that does not
            for handle in self._ready:
                if _has_ended(handle):
                    handle.cancel()
        if self._random is not None and len(self._ready) > 1:
            ready = list(self._ready)
            self._random.shuffle(ready)
            self._ready.clear()
            self._ready.extend(ready)
        super()._run_once()  # type: ignore[misc]

    def _process_events(self, events: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class _SimFuture(asyncio.Future[Any]):
    """Hashed by its order of birth: asyncio keeps futures in sets, whose order would follow addresses."""

    def __init__(self, *, loop: SimLoop) -> None:
        super().__init__(loop=loop)
        self._birth = loop.next_birth()

    def __hash__(self) -> int:
        return self._birth


class _SimTask(asyncio.Task[Any]):
    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, loop: SimLoop, **options: Any) -> None:
        self._birth = loop.next_birth()  # first: the base class puts the new task into a set
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self._birth


def _has_ended(handle: asyncio.Handle) -> bool:
    context: Context = handle._context  # type: ignore[attr-defined]
    life = context.get(_life)
    return life is not None and life.ended


def _bury(task: asyncio.Task[Any]) -> None:
    """Drop a task that a halt left waiting, here and not whenever the garbage collector finds it."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    assert coroutine is not None
    with suppress(BaseException):  # its world is gone, so its cleaning up fails in every way
        coroutine.close()


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> _SimTask:
    assert isinstance(loop, SimLoop)
    if loop.halted:
        coroutine.close()
        raise RuntimeError("the simulation was halted")
    task = _SimTask(coroutine, loop=loop, **options)
    loop.keep(task)
    return task
