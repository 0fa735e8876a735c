"""The contract tests of all registries, as one class: a subclass provides the fixture `opened`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from headrace.registry.interface import (
    BadVersion,
    Check,
    Create,
    Delete,
    KeyExists,
    KeyNotEmpty,
    NoKey,
    Registry,
    RegistryConflict,
    RegistryEntry,
    RegistryOperation,
    SessionLost,
    SessionState,
    Set,
)

Opened = AbstractAsyncContextManager[Registry]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


class RegistryContract:
    async def test_a_created_key_has_version_0_and_every_set_adds_one(self, opened: Opened) -> None:
        async with opened as registry:
            await registry.commit([Create("/a", b"one")])
            assert await registry.get("/a") == RegistryEntry("/a", b"one", 0)
            await registry.commit([Set("/a", b"two", 0)])
            await registry.commit([Set("/a", b"three", 1)])
            assert await registry.get("/a") == RegistryEntry("/a", b"three", 2)

    async def test_a_key_that_does_not_exist_is_none(self, opened: Opened) -> None:
        async with opened as registry:
            assert await registry.get("/nothing") is None

    async def test_a_deleted_key_is_gone_and_may_come_again(self, opened: Opened) -> None:
        async with opened as registry:
            await registry.commit([Create("/a", b"")])
            await registry.commit([Delete("/a", 0)])
            assert await registry.get("/a") is None
            await registry.commit([Create("/a", b"again")])
            assert await registry.get("/a") == RegistryEntry("/a", b"again", 0)

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
        self, opened: Opened, operation: RegistryOperation, conflict: type[RegistryConflict]
    ) -> None:
        async with opened as registry:
            await registry.commit([Create("/a", b"a"), Create("/folder", b""), Create("/folder/child", b"")])
            with pytest.raises(conflict):
                await registry.commit([Create("/before", b""), operation, Create("/after", b"")])
            assert await registry.get("/before") is None
            assert await registry.get("/after") is None
            assert await registry.get("/a") == RegistryEntry("/a", b"a", 0)

    async def test_a_transaction_sees_its_own_earlier_operations(self, opened: Opened) -> None:
        async with opened as registry:
            await registry.commit([Create("/a", b"1"), Set("/a", b"2", 0), Check("/a", 1), Delete("/a", 1)])
            assert await registry.get("/a") is None

    async def test_a_check_alone_changes_nothing(self, opened: Opened) -> None:
        async with opened as registry:
            await registry.commit([Create("/a", b"1")])
            await registry.commit([Check("/a", 0)])
            assert await registry.get("/a") == RegistryEntry("/a", b"1", 0)

    async def test_a_key_may_be_made_above_and_beneath_others_in_any_order(self, opened: Opened) -> None:
        async with opened as registry:
            await registry.commit([Create("/a/b/c", b"deep")])
            assert await registry.get("/a/b") is None
            assert [entry.key for entry in await registry.entries("/a")] == ["/a/b/c"]
            await registry.commit([Create("/a/b", b"above"), Create("/a/b/c/d", b"beneath")])
            assert await registry.get("/a/b") == RegistryEntry("/a/b", b"above", 0)
            with pytest.raises(KeyNotEmpty):
                await registry.commit([Delete("/a/b/c/d", 0), Delete("/a/b", 0), Delete("/a/b/c", 0)])
            await registry.commit([Delete("/a/b/c/d", 0), Delete("/a/b/c", 0), Delete("/a/b", 0)])
            assert await registry.entries("/a") == []

    async def test_one_commit_may_take_a_key_away_and_put_another_beneath_it(self, opened: Opened) -> None:
        async with opened as registry:
            await registry.commit([Create("/a", b"")])
            await registry.commit([Delete("/a", 0), Create("/a/b/c", b"")])
            await registry.commit([Delete("/a/b/c", 0), Create("/a/b", b""), Delete("/a/b", 0), Create("/a", b"new")])
            assert await registry.get("/a") == RegistryEntry("/a", b"new", 0)
            assert await registry.entries("/a") == []

    async def test_entries_lists_what_is_beneath_and_nothing_beside_it(self, opened: Opened) -> None:
        async with opened as registry:
            keys = ["/topics", "/topics/b", "/topics/a", "/topics/a/deep", "/topics-too", "/topics0", "/other"]
            await registry.commit([Create(key, key.encode()) for key in keys])
            entries_beneath = await registry.entries("/topics")
            assert [entry.key for entry in entries_beneath] == ["/topics/a", "/topics/a/deep", "/topics/b"]
            assert await registry.entries("/nothing") == []

    async def test_ephemeral_keys_end_with_their_session_and_others_stay(self, opened: Opened) -> None:
        async with opened as registry:
            session = await registry.open_session()
            await registry.commit([Create("/brokers/1", b"", session), Create("/brokers/2", b"")])
            await registry.close_session(session)
            assert [entry.key for entry in await registry.entries("/brokers")] == ["/brokers/2"]
            await registry.close_session(session)
            assert [entry.key for entry in await registry.entries("/brokers")] == ["/brokers/2"]

    async def test_a_session_is_held_when_it_was_opened_and_its_own_end_is_not_told(self, opened: Opened) -> None:
        async with opened as registry:
            states: list[SessionState] = []
            session = await registry.open_session(states.append)
            assert states == [SessionState.HELD]
            await registry.commit([Create("/a", b"", session)])
            await registry.close_session(session)
            assert await registry.get("/a") is None
            assert states == [SessionState.HELD]

    async def test_a_session_is_certainly_valid_for_a_while_and_not_before_it_is_opened_nor_when_it_is_closed(
        self, opened: Opened
    ) -> None:
        async with opened as registry:
            assert registry.session_valid_until == float("-inf")
            session = await registry.open_session()
            assert registry.session_valid_until > asyncio.get_running_loop().time()
            await registry.close_session(session)
            assert registry.session_valid_until == float("-inf")

    async def test_when_the_session_is_over_nothing_is_committed_until_a_new_one_is_opened(
        self, opened: Opened
    ) -> None:
        async with opened as registry:
            old = await registry.open_session()
            await registry.commit([Create("/kept", b"")])
            await registry.close_session(old)
            for operation in (Create("/a", b"", old), Create("/a", b""), Set("/kept", b"", 0), Check("/kept", 0)):
                with pytest.raises(SessionLost):
                    await registry.commit([operation])
            assert await registry.get("/a") is None
            assert await registry.get("/kept") == RegistryEntry("/kept", b"", 0)
            new = await registry.open_session()
            assert new != old
            with pytest.raises(SessionLost):
                await registry.commit([Set("/kept", b"by the dead", 0), Create("/a", b"", old)])
            await registry.commit([Set("/kept", b"by the living", 0), Create("/a", b"", new)])
            assert await registry.get("/kept") == RegistryEntry("/kept", b"by the living", 1)

    async def test_keys_of_a_session_that_is_over_can_be_made_again_by_the_next(self, opened: Opened) -> None:
        async with opened as registry:
            for number in range(3):
                session = await registry.open_session()
                await registry.commit([Create("/live/1", str(number).encode(), session)])
                assert await registry.get("/live/1") == RegistryEntry("/live/1", str(number).encode(), 0)
                await registry.close_session(session)

    async def test_an_ephemeral_key_can_be_set_and_deleted_like_any_other(self, opened: Opened) -> None:
        async with opened as registry:
            session = await registry.open_session()
            await registry.commit([Create("/controller", b"1", session)])
            await registry.commit([Set("/controller", b"2", 0)])
            await registry.commit([Delete("/controller", 1)])
            await registry.commit([Create("/controller", b"stays")])
            await registry.close_session(session)
            assert await registry.get("/controller") == RegistryEntry("/controller", b"stays", 0)

    async def test_a_watch_hears_of_every_change_beneath_its_prefix_in_order(self, opened: Opened) -> None:
        async with opened as registry:
            heard: list[str] = []
            registry.watch("/topics", heard.append)
            await registry.commit([Create("/topics/a", b""), Create("/other", b"")])
            await registry.commit([Set("/topics/a", b"x", 0), Create("/topics/b", b"")])
            await registry.commit([Delete("/topics/a", 1)])
            await until(lambda: len(heard) == 4)
            assert heard == ["/topics/a", "/topics/a", "/topics/b", "/topics/a"]

    async def test_a_watch_hears_of_ephemeral_keys_that_end(self, opened: Opened) -> None:
        async with opened as registry:
            session = await registry.open_session()
            heard: list[str] = []
            registry.watch("/controller", heard.append)
            await registry.commit([Create("/controller", b"", session)])
            await until(lambda: heard == ["/controller"])
            await registry.close_session(session)
            await until(lambda: heard == ["/controller", "/controller"])

    async def test_a_watch_hears_nothing_of_refused_changes_nor_after_cancel(self, opened: Opened) -> None:
        async with opened as registry:
            heard: list[str] = []
            marks: list[str] = []
            end_watch = registry.watch("/a", heard.append)
            registry.watch("/mark", marks.append)
            with pytest.raises(BadVersion):
                await registry.commit([Create("/a", b""), Set("/a", b"", 7)])
            await registry.commit([Create("/mark", b"")])
            await until(lambda: len(marks) == 1)
            end_watch()
            end_watch()
            await registry.commit([Create("/a", b"")])
            await registry.commit([Set("/mark", b"", 0)])
            await until(lambda: len(marks) == 2)
            assert heard == []

    async def test_of_many_that_set_the_same_version_exactly_one_wins(self, opened: Opened) -> None:
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
            assert await registry.get("/a") == RegistryEntry("/a", str(won[0]).encode(), 1)
