"""Background tasks do not die in silence."""

from __future__ import annotations

import asyncio
import gc

import pytest

from headrace.runtime.tasks import BackgroundTaskDied, Supervisor, wait_until_set


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def die() -> None:
    raise ValueError("the reason")


async def test_the_first_task_that_dies_is_told_with_its_name_and_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = Supervisor()
    supervisor.spawn(forever(), "retention")
    supervisor.spawn(die(), "flusher")
    with pytest.raises(BackgroundTaskDied, match="flusher") as caught:
        await supervisor.failure()
    assert isinstance(caught.value.__cause__, ValueError)
    assert "background task failed task=flusher" in caplog.text
    with pytest.raises(BackgroundTaskDied, match="flusher"):
        await supervisor.failure()
    await supervisor.stop()


async def test_a_task_that_ends_by_itself_is_no_failure() -> None:
    supervisor = Supervisor()
    task = supervisor.spawn(asyncio.sleep(0, "done"), "loading")
    assert await task == "done"
    waiting = asyncio.ensure_future(supervisor.failure())
    await asyncio.sleep(0)
    assert not waiting.done()
    await supervisor.stop()
    await waiting


async def test_stopping_waits_until_every_task_has_cleaned_up() -> None:
    supervisor, ended = Supervisor(), []

    async def tidy(name: str) -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    supervisor.spawn(tidy("first"), "first")
    supervisor.spawn(tidy("second"), "second")
    await asyncio.sleep(0)
    await supervisor.stop()
    assert ended == ["second", "first"]
    await supervisor.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        supervisor.spawn(forever(), "late")


async def test_a_task_that_dies_while_it_is_stopped_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor()

    async def stumble() -> None:
        try:
            await forever()
        finally:
            await die()

    supervisor.spawn(stumble(), "stumbling")
    await asyncio.sleep(0)
    await supervisor.stop()
    assert "background task failed task=stumbling" in caplog.text


async def test_the_supervisor_keeps_its_tasks_alive() -> None:
    supervisor, ran = Supervisor(), []

    async def wait_alone() -> None:
        ran.append(await asyncio.sleep(0.001, "woken"))

    supervisor.spawn(wait_alone(), "alone")
    await asyncio.sleep(0)
    gc.collect()
    while not ran:
        await asyncio.sleep(0)
    await supervisor.stop()


async def test_a_wait_ends_when_the_event_is_set_or_the_time_is_over() -> None:
    event = asyncio.Event()
    assert not await wait_until_set(event, 0)
    waits = [asyncio.ensure_future(wait_until_set(event, seconds)) for seconds in (60, None)]
    await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits)
    event.set()
    assert await asyncio.gather(*waits) == [True, True]
