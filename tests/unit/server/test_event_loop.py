"""A hanging event loop terminates the process; a pause of the whole process does not. The clock is a fake."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from headrace.server.event_loop import HEARTBEAT_SECONDS, LoopWatchdog

SECONDS = 20.0


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)


class Waits:
    """In the place of the thread's event: each wait takes as long as the script says; it is stopped at its end.
    `pulses` are the waits after which the loop has had its turn."""

    def __init__(self, clock: FakeClock, steps: list[float], watchdog: LoopWatchdog, pulses: set[int]) -> None:
        self._clock = clock
        self._steps: Iterator[tuple[int, float]] = iter(enumerate(steps))
        self._watchdog = watchdog
        self._pulses = pulses

    def wait(self, _seconds: float) -> bool:
        number, step = next(self._steps, (-1, -1.0))
        if number < 0:
            return True
        self._clock.seconds += step
        if number in self._pulses:
            self._watchdog._heartbeat = self._clock.seconds
        return False


def given_up(steps: list[float], pulses: set[int]) -> bool:
    clock, calls = FakeClock(), []
    watchdog = LoopWatchdog(clock, SECONDS, lambda: calls.append(clock.seconds))
    watchdog._stopped = Waits(clock, steps, watchdog, pulses)  # type: ignore[assignment]
    watchdog._watch()
    return bool(calls)


def ticks(seconds: float) -> list[float]:
    return [HEARTBEAT_SECONDS] * int(seconds / HEARTBEAT_SECONDS)


def test_a_hanging_event_loop_terminates_the_process() -> None:
    assert given_up(ticks(SECONDS + 1), set())


def test_a_slow_event_loop_does_not_terminate_the_process() -> None:
    steps = ticks(10 * SECONDS)
    every_so_often = set(range(0, len(steps), int((SECONDS - 1) / HEARTBEAT_SECONDS)))
    assert not given_up(steps, every_so_often)


def test_after_a_pause_of_the_process_the_event_loop_may_run_first() -> None:
    assert not given_up([HEARTBEAT_SECONDS, 10 * SECONDS, HEARTBEAT_SECONDS], {0, 2})
    assert given_up([HEARTBEAT_SECONDS, 10 * SECONDS, HEARTBEAT_SECONDS], {0}), "but not for ever"


async def test_the_event_loop_updates_the_heartbeat_and_the_thread_ends_with_it() -> None:
    clock = FakeClock()
    watchdog = LoopWatchdog(clock, SECONDS, lambda: None)
    clock.seconds += 7
    running = asyncio.create_task(watchdog.run())
    await asyncio.sleep(0)
    assert watchdog._heartbeat == clock.seconds
    assert watchdog._thread.is_alive()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    watchdog._thread.join(timeout=10)
    assert not watchdog._thread.is_alive()


def test_by_default_the_process_exits_without_cleanup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit handlers would wait for the hanging event loop forever."""
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    clock = FakeClock()
    watchdog = LoopWatchdog(clock, SECONDS)
    watchdog._stopped = Waits(clock, ticks(SECONDS + 1), watchdog, set())  # type: ignore[assignment]
    thread = threading.Thread(target=watchdog._watch)
    thread.start()
    thread.join(timeout=10)
    assert codes == [70]
