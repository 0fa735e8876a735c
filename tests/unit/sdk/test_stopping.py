"""A stop ends waits, and an interruption is passed on to the code that runs."""

from __future__ import annotations

import asyncio

import pytest

from headrace.sdk.stopping import Interruption, StopSignal, on_interruption


async def test_a_stop_ends_the_wait() -> None:
    stopping = StopSignal()
    waiting = asyncio.create_task(stopping.wait_unless_stopped(asyncio.Event().wait))
    await asyncio.sleep(0)
    stopping.request_stop()
    stopping.request_stop()
    assert await waiting is None


async def test_after_a_stop_nothing_is_started() -> None:
    stopping = StopSignal()
    stopping.request_stop()
    begun: list[str] = []

    async def work() -> str:
        begun.append("work")
        return "done"

    assert await stopping.wait_unless_stopped(work) is None
    assert begun == []


async def test_a_result_before_the_stop_is_returned() -> None:
    stopping = StopSignal()

    async def work() -> int:
        return 1

    assert await stopping.wait_unless_stopped(work) == 1
    stopping.request_stop()


async def test_a_timeout_of_the_work_is_not_a_stop() -> None:
    async def work() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await StopSignal().wait_unless_stopped(work)


async def test_an_interruption_calls_back_even_if_it_came_first() -> None:
    interruption, heard = Interruption(), []
    on_interruption(lambda: heard.append("outside"))
    with interruption:
        on_interruption(lambda: heard.append("before"))
        interruption.request()
        on_interruption(lambda: heard.append("after"))
    on_interruption(lambda: heard.append("outside"))
    assert heard == ["before", "after"]
