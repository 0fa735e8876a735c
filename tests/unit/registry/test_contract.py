"""SQLite and the simulation keep the same rules; ZooKeeper's turn is in tests/integration/test_zookeeper.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.registry.contract import Opened, RegistryContract

from headrace.registry.interface import Check, Create, Delete, Registry, RegistryConflict, RegistryOperation, Set
from headrace.registry.sqlite import SqliteRegistry
from headrace.registry.sqlite_shared import SharedSqliteRegistry
from headrace.runtime.clock import SystemClock
from headrace.testkit.registry import SimRegistry


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[Registry]:
    registry = await SqliteRegistry.open(str(folder / "registry.db"), in_thread)
    yield registry
    await registry.close()


@asynccontextmanager
async def shared(folder: Path) -> AsyncIterator[Registry]:
    """Beside another process's, which holds a session and reads along."""
    path = str(folder / "registry.db")
    other = await SharedSqliteRegistry.open(path, in_thread, SystemClock(), 6.0)
    await other.open_session()
    registry = await SharedSqliteRegistry.open(path, in_thread, SystemClock(), 6.0)
    yield registry
    await registry.close()
    await other.close()


@asynccontextmanager
async def simulated(_folder: Path) -> AsyncIterator[Registry]:
    registry = SimRegistry()
    yield registry
    await registry.close()


@asynccontextmanager
async def far_away(_folder: Path) -> AsyncIterator[Registry]:
    registry = SimRegistry()
    registry.state.delay_seconds = (0.0001, 0.001)
    registry.state.session_timeout_seconds = 6.0
    yield registry
    await registry.close()


class TestContract(RegistryContract):
    @pytest.fixture(params=[sqlite, shared, simulated, far_away], ids=lambda opener: opener.__name__)
    def opened(self, request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
        context: Opened = request.param(tmp_path)
        return context


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
    tmp_path_factory: pytest.TempPathFactory, commits: Sequence[Sequence[RegistryOperation]]
) -> None:
    async def outcome(registry: Registry, operations: Sequence[RegistryOperation]) -> type | None:
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
