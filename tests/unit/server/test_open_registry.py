"""The registry that is opened for given settings."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.registry.interface import Create, Registry
from headrace.registry.sqlite import SqliteRegistry
from headrace.registry.sqlite_shared import SharedSqliteRegistry
from headrace.runtime.clock import Clock, SystemClock
from headrace.server.open_registry import open_registry
from headrace.server.settings import ServeSettings


class Threads:
    """The part of `Disk` that the registry uses."""

    def run(self, work: Callable[..., Any], *args: object) -> Any:
        return asyncio.to_thread(work, *args)


@asynccontextmanager
async def opened(settings: ServeSettings) -> AsyncIterator[Registry]:
    registry = await open_registry(settings, Threads(), SystemClock())  # type: ignore[arg-type]
    try:
        yield registry
    finally:
        await registry.close()


async def test_the_default_registry_is_a_file_in_the_data_folder(tmp_path: Path) -> None:
    async with opened(ServeSettings(data=str(tmp_path))) as registry:
        assert isinstance(registry, SqliteRegistry)
        await registry.commit([Create("/a", b"1")])
    assert (tmp_path / "registry.db").exists()


async def test_brokers_of_one_host_share_the_given_file(tmp_path: Path) -> None:
    settings = ServeSettings(data="/nowhere", registry=f"sqlite:{tmp_path / 'shared.db'}")
    async with opened(settings) as one, opened(settings) as other:
        assert isinstance(one, SharedSqliteRegistry)
        await one.commit([Create("/a", b"1")])
        assert (entry := await other.get("/a")) is not None
        assert entry.value == b"1"


async def test_zookeeper_is_opened_with_its_hosts_root_and_session_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    zookeeper = pytest.importorskip("headrace.registry.zookeeper")
    calls: list[tuple[str, str, float]] = []

    async def open_ensemble(hosts: str, root: str, _clock: Clock, session_timeout_seconds: float) -> str:
        calls.append((hosts, root, session_timeout_seconds))
        return "the ensemble's"

    monkeypatch.setattr(zookeeper.ZooKeeperRegistry, "open", open_ensemble)
    settings = ServeSettings(registry="zookeeper://a:2181,b:2181/prod", session_timeout_seconds=9.0)
    assert await open_registry(settings, Threads(), SystemClock()) == "the ensemble's"  # type: ignore[arg-type, comparison-overlap]
    assert calls == [("a:2181,b:2181", "/prod", 9.0)]


async def test_without_zookeeper_its_client_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports take most of the startup time."""
    monkeypatch.setitem(sys.modules, "headrace.registry.zookeeper", None)
    async with opened(ServeSettings(data=str(tmp_path))):
        pass
