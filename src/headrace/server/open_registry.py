"""Open the registry of a broker: by default a SQLite file in its data folder, else one that brokers share, which is a
SQLite file for brokers on one host or a ZooKeeper ensemble."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk
from headrace.server.settings import SHARED_REGISTRY, ServeSettings

if TYPE_CHECKING:
    from headrace.registry.interface import Registry


async def open_registry(settings: ServeSettings, disk: Disk, clock: Clock) -> Registry:
    # Import only the one in use: imports take most of the startup time.
    if settings.registry is None:
        from headrace.registry.sqlite import SqliteRegistry

        return await SqliteRegistry.open(os.path.join(settings.data, "registry.db"), disk.run)
    if settings.registry.startswith(SHARED_REGISTRY):
        from headrace.registry.sqlite_shared import SharedSqliteRegistry

        path = settings.registry.removeprefix(SHARED_REGISTRY)
        return await SharedSqliteRegistry.open(path, disk.run, clock, settings.session_timeout_seconds)
    from headrace.registry.zookeeper import ZooKeeperRegistry
    from headrace.registry.zookeeper_plan import parse_registry_url

    hosts, root = parse_registry_url(settings.registry)
    return await ZooKeeperRegistry.open(hosts, root, clock, settings.session_timeout_seconds)
