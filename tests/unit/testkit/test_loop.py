"""The simulated loop: virtual time, seeded order, and the private parts of asyncio that it uses."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pytest

from headrace.testkit.loop import Deadlock, HostRun, SimLoop, run


def test_an_hour_passes_at_once() -> None:
    async def main(loop: SimLoop) -> float:
        await asyncio.sleep(3600)
        return loop.time()

    assert run(1, main) == pytest.approx(3600, abs=0.001)


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def main(_: SimLoop) -> list[int]:
        order: list[int] = []

        async def sleeper(delay: int) -> None:
            await asyncio.sleep(delay)
            order.append(delay)

        async with asyncio.TaskGroup() as group:
            for delay in (3, 1, 2):
                group.create_task(sleeper(delay))
        return order

    assert run(1, main) == [1, 2, 3]


def test_a_polling_task_does_not_stop_the_clock() -> None:
    async def main(loop: SimLoop) -> None:
        due: list[bool] = []
        loop.call_later(0.0001, due.append, True)
        while not due:
            await asyncio.sleep(0)

    run(1, main)


def test_a_deadlock_is_reported() -> None:
    async def main(loop: SimLoop) -> None:
        await loop.create_future()

    with pytest.raises(Deadlock):
        run(1, main)


def order_of_steps(seed: int, *, shuffle: bool) -> list[int]:
    async def main(_: SimLoop) -> list[int]:
        order: list[int] = []

        async def step(number: int) -> None:
            for _ in range(3):
                order.append(number)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(step(number))
        return order

    return run(seed, main, shuffle=shuffle)


def test_ready_callbacks_run_first_in_first_out() -> None:
    assert order_of_steps(1, shuffle=False) == [0, 1, 2, 3, 4] * 3


def test_a_shuffled_order_comes_from_the_seed() -> None:
    assert order_of_steps(1, shuffle=True) == order_of_steps(1, shuffle=True)
    assert len({tuple(order_of_steps(seed, shuffle=True)) for seed in range(10)}) > 5


def test_sets_of_tasks_and_futures_iterate_in_creation_order() -> None:
    async def main(loop: SimLoop) -> list[int]:
        cancelled: list[int] = []
        ballast = []

        async def wait(number: int) -> None:
            try:
                await loop.create_future()
            except asyncio.CancelledError:
                cancelled.append(number)
                raise

        async def fail() -> None:
            await asyncio.sleep(1)
            raise ValueError

        try:
            async with asyncio.TaskGroup() as group:  # which keeps its tasks in a set
                for number in range(30):
                    group.create_task(wait(number))
                    ballast.append([object() for _ in range(number * 7 % 5)])  # moves the addresses about
                group.create_task(fail())
        except* ValueError:
            pass
        return cancelled

    assert run(1, main) == list(range(30))


def test_there_are_no_threads() -> None:
    async def main(loop: SimLoop) -> None:
        with pytest.raises(RuntimeError, match=r"Disk\.run"):
            await loop.run_in_executor(None, int)

    run(1, main)


def test_remaining_tasks_are_cancelled_oldest_first() -> None:
    ended: list[int] = []

    async def main(loop: SimLoop) -> None:
        async def background(number: int) -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                ended.append(number)

        for number in range(3):
            loop.create_task(background(number))
        await asyncio.sleep(1)

    run(1, main)
    assert ended == [0, 1, 2]


def test_a_halt_stops_all_tasks_without_cleanup() -> None:
    ended: list[str] = []

    class PowerCut(BaseException):
        pass

    async def main(loop: SimLoop) -> None:
        async def background() -> None:
            try:
                await asyncio.sleep(0)
                await asyncio.sleep(5)
            finally:
                ended.append("background")
                await asyncio.sleep(0)

        loop.create_task(background())
        await asyncio.sleep(0)
        loop.call_soon(loop.halt, PowerCut("now"))
        loop.call_soon(ended.append, "callback in the same turn")
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            ended.append("main")

    loop = SimLoop(1)
    with pytest.raises(PowerCut, match="now"):
        loop.run_until_complete(main(loop))
    assert ended == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.finish()
        gc.collect()


def test_no_task_is_created_after_a_halt() -> None:
    loop = SimLoop(1)
    loop.halt(RuntimeError("over"))
    with pytest.raises(RuntimeError, match="halted"):
        loop.create_task(asyncio.sleep(0))


def test_a_callback_that_raises_is_a_finding() -> None:
    async def main(loop: SimLoop) -> None:
        loop.call_later(1, int, "not a number")
        await asyncio.sleep(5)

    with pytest.raises(ValueError, match="not a number"):
        run(1, main)


def test_tasks_without_references_keep_running() -> None:
    async def main(loop: SimLoop) -> list[str]:
        done: list[str] = []

        async def lonely() -> None:
            cycle: list[Any] = [loop.create_future()]
            cycle.append(cycle)
            loop.call_later(1, cycle[0].set_result, None)
            await cycle[0]
            done.append("done")

        loop.create_task(lonely())
        await asyncio.sleep(0.5)
        gc.collect()
        await asyncio.sleep(1)
        return done

    assert run(1, main) == ["done"]


def test_a_paused_life_runs_all_that_was_due_at_once_when_it_wakes() -> None:
    async def main(loop: SimLoop) -> dict[str, list[float]]:
        seen: dict[str, list[float]] = {"paused": [], "other": []}

        async def tick(name: str) -> None:
            for at in range(1, 6):
                loop.call_at(at, lambda: seen[name].append(round(loop.time(), 3)))
            while True:
                await asyncio.sleep(0.4)
                seen[name].append(round(loop.time(), 3))

        life = HostRun()
        loop.begin(life, tick("paused"), "paused")
        loop.create_task(tick("other"))
        await asyncio.sleep(0.5)
        loop.pause(life, 3.0)
        assert loop.is_paused(life)
        await asyncio.sleep(3.2)
        assert not loop.is_paused(life)
        return seen

    seen = run(1, main)
    assert seen["paused"] == [0.4, 3.5, 3.5, 3.5, 3.5]  # three timers, and one sleep that was long over
    assert len(seen["other"]) == 9 + 3


def test_a_paused_life_can_end() -> None:
    async def main(loop: SimLoop) -> list[str]:
        seen: list[str] = []
        life = HostRun()

        async def sleep() -> None:
            await asyncio.sleep(1)
            seen.append("awake")

        loop.begin(life, sleep(), "sleeper")
        await asyncio.sleep(0)
        loop.pause(life, 2.0)
        await asyncio.sleep(1.5)
        loop.end(life)
        await asyncio.sleep(3)
        return seen

    assert run(1, main) == []


def test_asyncio_has_the_private_parts_that_the_loop_rests_on() -> None:
    loop = asyncio.new_event_loop()
    for name in ("_ready", "_stopping", "_run_once", "_write_to_self"):
        assert hasattr(loop, name)
    handle = loop.call_soon(print)
    for name in ("_cancelled", "_context", "_run"):
        assert hasattr(handle, name)
    loop.close()
