"""Turns: alone with a key, beside all others."""

from __future__ import annotations

import asyncio

from headrace.runtime.tasks import KeyedLock


async def test_operations_on_one_key_run_one_at_a_time_and_on_others_concurrently() -> None:
    turns, seen = KeyedLock[int](), list[str]()
    go = asyncio.Event()

    async def work(name: str, *keys: int) -> None:
        async with turns.take(keys):
            seen.append(name)
            await go.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(work("first", 1, 2))
        group.create_task(work("same", 2, 3))
        group.create_task(work("other", 4))
        await asyncio.sleep(0)
        assert seen == ["first", "other"]
        go.set()
    assert seen == ["first", "other", "same"]


async def test_a_free_lock_is_acquired_without_a_wait() -> None:
    turns = KeyedLock[int]()
    taken = turns.take([1, 1])
    entering = taken.__aenter__()
    try:
        entering.send(None)
        raise AssertionError("it waited")
    except StopIteration:
        pass
    await taken.__aexit__(None, None, None)


async def test_a_lock_is_released_after_an_error_or_a_cancelled_wait() -> None:
    turns = KeyedLock[int]()

    async def fail() -> None:
        async with turns.take([1]):
            await asyncio.sleep(0)
            raise ValueError

    async def wait() -> None:
        async with turns.take([1]):
            raise AssertionError("its wait was cancelled")

    failing, waiting = asyncio.ensure_future(fail()), asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([failing, waiting])
    assert waiting.cancelled()
    assert isinstance(failing.exception(), ValueError)
    async with asyncio.timeout(1), turns.take([1]):
        pass
