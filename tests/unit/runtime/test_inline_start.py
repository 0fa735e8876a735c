"""A coroutine that need not wait needs no task; one that must, loses nothing by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from headrace.runtime import inline_start as eager
from headrace.testkit.loop import run as run_simulated

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop", "simulated"])
def run(request: pytest.FixtureRequest) -> Run:
    def simulated(main: Coroutine[Any, Any, None]) -> None:
        run_simulated(1, lambda _: main)

    return {"asyncio": asyncio.run, "uvloop": uvloop.run, "simulated": simulated}[request.param]


async def started(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """The outcome of `eager.start`, called as it must be: from a plain callback of the loop."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()

    def call() -> None:
        try:
            outcome.set_result(eager.start_inline(make(), loop))
        except Exception as error:
            outcome.set_exception(error)

    loop.call_soon(call)
    return await outcome


def test_a_coroutine_that_completes_at_once_creates_no_task(run: Run) -> None:
    async def answer() -> str:
        return "at once"

    async def main() -> None:
        before = len(asyncio.all_tasks())
        assert await started(answer) == ("at once",)
        assert len(asyncio.all_tasks()) == before

    run(main())


def test_a_coroutine_that_waits_continues_in_a_task(run: Run) -> None:
    async def main() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        steps = []

        async def answer() -> int:
            steps.append("before")
            first = await future
            steps.append("between")
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            return first + 1

        task = await started(answer)
        assert steps == ["before"]
        assert isinstance(task, asyncio.Task)
        future.set_result(1)
        assert await task == 2
        assert steps == ["before", "between"]

    run(main())


def test_a_bare_yield_is_a_wait_too(run: Run) -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 3

    async def main() -> None:
        assert await (await started(answer)) == 3

    run(main())


def test_a_future_that_is_done_before_the_task_begins_is_not_missed(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        tasks: list[Any] = []

        async def answer() -> int:
            return await future

        def call() -> None:
            tasks.append(eager.start_inline(answer(), loop))
            future.set_result(4)

        loop.call_soon(call)
        await asyncio.sleep(0)
        assert await tasks[0] == 4

    run(main())


def test_an_error_before_the_first_wait_is_raised_to_the_caller(run: Run) -> None:
    async def fail() -> None:
        raise ValueError("early")

    async def main() -> None:
        with pytest.raises(ValueError, match="early"):
            await started(fail)

    run(main())


def test_an_error_after_the_first_wait_is_raised_by_the_task(run: Run) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("late")

    async def main() -> None:
        task = await started(fail)
        with pytest.raises(ValueError, match="late"):
            await task

    run(main())


def test_an_awaited_error_can_be_handled_inside(run: Run) -> None:
    async def main() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def answer() -> str:
            try:
                await future
            except ValueError:
                await asyncio.sleep(0)
                return "handled"
            return "not reached"

        task = await started(answer)
        future.set_exception(ValueError())
        assert await task == "handled"

    run(main())


@pytest.mark.parametrize("turns", [0, 1, 2], ids=["before its first step", "in it", "while it waits"])
def test_a_cancelled_task_lets_the_coroutine_clean_up(run: Run, turns: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        cleaned = []

        async def answer() -> None:
            try:
                await loop.create_future()
            except asyncio.CancelledError:
                cleaned.append("cancelled")
                raise
            finally:
                await asyncio.sleep(0)
                cleaned.append("cleaned")

        task: Any = None

        def call() -> None:
            nonlocal task
            task = eager.start_inline(answer(), loop)
            if turns == 0:
                task.cancel()

        loop.call_soon(call)
        await asyncio.sleep(0)
        for _ in range(turns - 1):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleaned == ["cancelled", "cleaned"]

    run(main())


def test_timeouts_work_inside_a_task_and_raise_before(run: Run) -> None:
    async def careless() -> None:
        async with asyncio.timeout(1):
            pass

    async def careful() -> str:
        await eager.switch_to_task()
        try:
            async with asyncio.timeout(0.001):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            return "timed out"
        return "not reached"

    async def main() -> None:
        with pytest.raises(RuntimeError, match="task"):
            await started(careless)
        assert await (await started(careful)) == "timed out"
        await eager.switch_to_task()

    run(main())


async def sent(make: Callable[[], Coroutine[Any, Any, None]]) -> eager.InlineCoroutine | None:
    """The outcome of `start_inline_coroutine`, called as it must be: from a plain callback of the loop."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[eager.InlineCoroutine | None] = loop.create_future()

    def call() -> None:
        try:
            outcome.set_result(eager.start_inline_coroutine(make(), loop))
        except Exception as error:
            outcome.set_exception(error)

    loop.call_soon(call)
    return await outcome


async def end_of(inline: eager.InlineCoroutine | None) -> None:
    assert inline is not None
    ended = asyncio.Event()
    inline.add_done_callback(lambda _: ended.set())
    await ended.wait()


def test_an_inline_coroutine_that_completes_at_once_is_none(run: Run) -> None:
    async def answer() -> None:
        return

    async def main() -> None:
        assert await sent(answer) is None

    run(main())


def test_an_inline_coroutine_waits_for_futures_without_a_task(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        first: asyncio.Future[int] = loop.create_future()
        second: asyncio.Future[int] = loop.create_future()
        told: list[Any] = []

        async def answer() -> None:
            told.append(await first)
            try:
                await second
            except ValueError as error:
                told.append(str(error))
            told.append(asyncio.current_task())

        before = len(asyncio.all_tasks())
        inline = await sent(answer)
        assert len(asyncio.all_tasks()) == before
        first.set_result(1)
        second.set_exception(ValueError("refused"))
        await end_of(inline)
        assert told == [1, "refused", None]

    run(main())


def test_an_inline_coroutine_can_switch_to_a_task_after_a_wait(run: Run) -> None:
    async def main() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        told: list[str] = []

        async def answer() -> None:
            await future
            await eager.switch_to_task()
            try:
                async with asyncio.timeout(0.001):
                    await asyncio.get_running_loop().create_future()
            except TimeoutError:
                told.append("timed out")

        inline = await sent(answer)
        future.set_result(None)
        await end_of(inline)
        assert told == ["timed out"]

    run(main())


def test_an_error_of_an_inline_coroutine_before_its_first_wait_is_raised_to_the_caller(run: Run) -> None:
    async def fail() -> None:
        raise ValueError("early")

    async def main() -> None:
        with pytest.raises(ValueError, match="early"):
            await sent(fail)

    run(main())


@pytest.mark.parametrize("run_really", [asyncio.run, uvloop.run])  # the simulated loop ends with such an error
def test_a_later_error_of_an_inline_coroutine_goes_to_the_exception_handler(run_really: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        heard: list[str] = []
        loop.set_exception_handler(lambda _, context: heard.append(str(context["exception"])))

        async def fail() -> None:
            await future
            raise ValueError("late")

        inline = await sent(fail)
        future.set_result(None)
        await end_of(inline)
        await asyncio.sleep(0)
        assert heard == ["late"]

    run_really(main())
