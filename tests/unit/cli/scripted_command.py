"""Run commands against scripted brokers on the simulated network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.scripted_cluster import ScriptedBroker, ScriptedCluster, in_world

from headrace.cli.main import main
from headrace.client.cluster import ClientSettings, Cluster
from headrace.testkit.world import World


def run_command(
    monkeypatch: pytest.MonkeyPatch, module: str, prepare: Callable[[ScriptedBroker], None], *arguments: str
) -> int:
    """Run a command of `module` against a scripted broker with the topic orders; its exit code."""

    def with_cluster(_server: str, work: Callable[[Cluster], Awaitable[Any]], timeout_seconds: float = 30.0) -> Any:
        settings = ClientSettings(request_timeout_seconds=timeout_seconds, deadline_seconds=timeout_seconds)

        async def scenario(world: World) -> Any:
            scripted_cluster = ScriptedCluster(world, orders=2)
            prepare(await scripted_cluster.broker())
            async with scripted_cluster.cluster(settings) as cluster:
                return await work(cluster)

        return in_world(scenario)

    monkeypatch.setattr(f"{module}.with_cluster", with_cluster)
    return main([*arguments])
