"""Run commands of `headrace cluster` and `headrace topic` against a scripted cluster."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.admin.administered_cluster import AdministeredCluster
from tests.unit.client.scripted_cluster import ScriptedCluster, in_world

from headrace.cli.main import main
from headrace.client.cluster import Cluster
from headrace.testkit.world import World


class ClusterCommandRunner:
    """Runs commands and captures their output."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.there = AdministeredCluster(1, 2, 3)
        self.stderr = ""
        self._capsys = capsys
        for module in ("cluster.cluster", "cluster.reassign", "topics.topic"):
            monkeypatch.setattr(f"headrace.cli.{module}.with_cluster", self._with_cluster)

    def play(self, *arguments: str, noun: str = "cluster", expect: int = 0) -> list[dict[str, Any]]:
        """Run a command and return the rows that it prints. Its other output is in `stderr`."""
        assert main([noun, *arguments]) == expect
        captured = self._capsys.readouterr()
        self.stderr = captured.err
        return [json.loads(line) for line in captured.out.splitlines()]

    def show(self, *arguments: str, expect: int = 0) -> str:
        """Run a command as on a terminal; what it prints."""
        assert main(["cluster", *arguments, "-o", "table"]) == expect
        captured = self._capsys.readouterr()
        self.stderr = captured.err
        return captured.out

    def _with_cluster(self, _server: str, work: Callable[[Cluster], Awaitable[Any]]) -> Any:
        async def scenario(world: World) -> Any:
            scripted_cluster = ScriptedCluster(world)
            self.there.brokers.clear()
            await self.there.join(scripted_cluster)
            async with scripted_cluster.cluster() as cluster:
                return await work(cluster)

        return in_world(scenario)
