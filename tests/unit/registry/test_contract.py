"""Every registry keeps the same rules; a new implementation is added to `OPENERS` and passes the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.registry.interface import (
    BadVersion,
    Check,
    Create,
    Delete,
    Entry,
    KeyExists,
    KeyNotEmpty,
    NoKey,
    Operation,
    Registry,
    RegistryConflict,
    SessionLost,
    Set,
)
from headrace.registry.sqlite import SqliteRegistry
from headrace.testkit.registry import SimRegistry

Opened = AbstractAsyncContextManager[Registry]


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[Registry]:
    registry = await SqliteRegistry.open(str(folder / "registry.db"), in_thread)
    yield registry
    await registry.close()


@asynccontextmanager
async def simulated(_folder: Path) -> AsyncIterator[Registry]:
    registry = SimRegistry()
    yield registry
    await registry.close()


OPENERS = [sqlite, simulated]


@pytest.fixture(params=OPENERS, ids=lambda opener: opener.__name__)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    context: Opened = request.param(tmp_path)
    return context


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_a_created_key_has_version_0_and_every_set_adds_one(opened: Opened) -> None:
    async with opened as registry:
        await registry.commit([Create("/a", b"one")])
        assert await registry.get("/a") == Entry("/a", b"one", 0)
        await registry.commit([Set("/a", b"two", 0)])
        await registry.commit([Set("/a", b"three", 1)])
        assert await registry.get("/a") == Entry("/a", b"three", 2)


async def test_a_key_that_does_not_exist_is_none(opened: Opened) -> None:
    async with opened as registry:
        assert await registry.get("/nothing") is None


async def test_a_deleted_key_is_gone_and_may_come_again(opened: Opened) -> None:
    async with opened as registry:
        await registry.commit([Create("/a", b"")])
        await registry.commit([Delete("/a", 0)])
        assert await registry.get("/a") is None
        await registry.commit([Create("/a", b"again")])
        assert await registry.get("/a") == Entry("/a", b"again", 0)


@pytest.mark.parametrize(
    ("operation", "conflict"),
    [
        (Create("/a", b"x"), KeyExists),
        (Set("/a", b"x", 1), BadVersion),
        (Set("/b", b"x", 0), NoKey),
        (Delete("/a", 1), BadVersion),
        (Delete("/b", 0), NoKey),
        (Check("/a", 1), BadVersion),
        (Check("/b", 0), NoKey),
        (Delete("/folder", 0), KeyNotEmpty),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else f"{type(value).__name__}{value.key}",
)
async def test_what_does_not_fit_is_refused_and_takes_its_neighbours_with_it(
    opened: Opened, operation: Operation, conflict: type[RegistryConflict]
) -> None:
    async with opened as registry:
        await registry.commit([Create("/a", b"a"), Create("/folder", b""), Create("/folder/child", b"")])
        with pytest.raises(conflict):
            await registry.commit([Create("/before", b""), operation, Create("/after", b"")])
        assert await registry.get("/before") is None
        assert await registry.get("/after") is None
        assert await registry.get("/a") == Entry("/a", b"a", 0)


async def test_a_transaction_sees_its_own_earlier_operations(opened: Opened) -> None:
    async with opened as registry:
        await registry.commit([Create("/a", b"1"), Set("/a", b"2", 0), Check("/a", 1), Delete("/a", 1)])
        assert await registry.get("/a") is None


async def test_a_check_alone_changes_nothing(opened: Opened) -> None:
    async with opened as registry:
        await registry.commit([Create("/a", b"1")])
        await registry.commit([Check("/a", 0)])
        assert await registry.get("/a") == Entry("/a", b"1", 0)


async def test_entries_lists_what_is_beneath_and_nothing_beside_it(opened: Opened) -> None:
    async with opened as registry:
        keys = ["/topics", "/topics/b", "/topics/a", "/topics/a/deep", "/topics-too", "/topics0", "/other"]
        await registry.commit([Create(key, key.encode()) for key in keys])
        beneath = await registry.entries("/topics")
        assert [entry.key for entry in beneath] == ["/topics/a", "/topics/a/deep", "/topics/b"]
        assert await registry.children("/topics") == ["a", "b"]
        assert await registry.children("/nothing") == []


async def test_ephemeral_keys_end_with_their_session_and_others_stay(opened: Opened) -> None:
    async with opened as registry:
        mine, other = await registry.open_session(), await registry.open_session()
        await registry.commit(
            [Create("/brokers/1", b"", mine), Create("/brokers/2", b"", other), Create("/brokers/3", b"")]
        )
        await registry.close_session(mine)
        assert await registry.children("/brokers") == ["2", "3"]
        await registry.close_session(mine)
        assert await registry.children("/brokers") == ["2", "3"]


async def test_a_session_that_is_over_creates_nothing(opened: Opened) -> None:
    async with opened as registry:
        session = await registry.open_session()
        await registry.close_session(session)
        with pytest.raises(SessionLost):
            await registry.commit([Create("/brokers/1", b"", session)])
        assert await registry.get("/brokers/1") is None


async def test_an_ephemeral_key_can_be_set_and_deleted_like_any_other(opened: Opened) -> None:
    async with opened as registry:
        session = await registry.open_session()
        await registry.commit([Create("/controller", b"1", session)])
        await registry.commit([Set("/controller", b"2", 0)])
        await registry.commit([Delete("/controller", 1)])
        await registry.commit([Create("/controller", b"stays")])
        await registry.close_session(session)
        assert await registry.get("/controller") == Entry("/controller", b"stays", 0)


async def test_a_watch_hears_of_every_change_beneath_its_prefix_in_order(opened: Opened) -> None:
    async with opened as registry:
        heard: list[str] = []
        registry.watch("/topics", heard.append)
        await registry.commit([Create("/topics/a", b""), Create("/other", b"")])
        await registry.commit([Set("/topics/a", b"x", 0), Create("/topics/b", b"")])
        await registry.commit([Delete("/topics/a", 1)])
        await until(lambda: len(heard) == 4)
        assert heard == ["/topics/a", "/topics/a", "/topics/b", "/topics/a"]


async def test_a_watch_hears_of_ephemeral_keys_that_end(opened: Opened) -> None:
    async with opened as registry:
        session = await registry.open_session()
        await registry.commit([Create("/controller", b"", session)])
        heard: list[str] = []
        registry.watch("/controller", heard.append)
        await registry.close_session(session)
        await until(lambda: heard == ["/controller"])


async def test_a_watch_hears_nothing_of_refused_changes_nor_after_cancel(opened: Opened) -> None:
    async with opened as registry:
        heard: list[str] = []
        marks: list[str] = []
        watch = registry.watch("/a", heard.append)
        registry.watch("/mark", marks.append)
        with pytest.raises(BadVersion):
            await registry.commit([Create("/a", b""), Set("/a", b"", 7)])
        await registry.commit([Create("/mark", b"")])
        await until(lambda: len(marks) == 1)
        watch.cancel()
        watch.cancel()
        await registry.commit([Create("/a", b"")])
        await registry.commit([Set("/mark", b"", 0)])
        await until(lambda: len(marks) == 2)
        assert heard == []


async def test_of_many_that_set_the_same_version_exactly_one_wins(opened: Opened) -> None:
    async with opened as registry:
        await registry.commit([Create("/a", b"")])
        won: list[int] = []

        async def compete(number: int) -> None:
            try:
                await registry.commit([Set("/a", str(number).encode(), 0)])
            except BadVersion:
                return
            won.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(compete(number))
        assert len(won) == 1
        assert await registry.get("/a") == Entry("/a", str(won[0]).encode(), 1)


KEYS = st.sampled_from(["/a", "/b", "/a/c"])
VERSIONS = st.integers(0, 2)
OPERATIONS = st.one_of(
    st.builds(Check, KEYS, VERSIONS),
    st.builds(Create, KEYS, st.binary(max_size=2)),
    st.builds(Set, KEYS, st.binary(max_size=2), VERSIONS),
    st.builds(Delete, KEYS, VERSIONS),
)


@given(st.lists(st.lists(OPERATIONS, min_size=1, max_size=3), max_size=8))
def test_sqlite_and_the_simulation_answer_alike(
    tmp_path_factory: pytest.TempPathFactory, commits: Sequence[Sequence[Operation]]
) -> None:
    async def outcome(registry: Registry, operations: Sequence[Operation]) -> type | None:
        try:
            await registry.commit(operations)
        except RegistryConflict as conflict:
            return type(conflict)
        return None

    async def compare() -> None:
        folder = tmp_path_factory.mktemp("registry")
        async with sqlite(folder) as real, simulated(folder) as simulation:
            for operations in commits:
                assert await outcome(real, operations) == await outcome(simulation, operations)
            for key in ("/a", "/b", "/a/c"):
                assert await real.get(key) == await simulation.get(key)

    asyncio.run(compare())
