"""Redis Streams with its append-only file: with an fsync per write, or every second (the default)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from bench.cache import install_package, run_tool
from bench.peers.peer import Consumes
from bench.processes import Launch


class Redis:
    protocol = "redis"
    consumes: Consumes = "asks"
    brokers = 1
    topic_config: Mapping[str, str] = {}

    def __init__(self, name: str, *, flushes: bool) -> None:
        self.name = name
        self.flushes = flushes

    def missing(self) -> str | None:
        return None if shutil.which("redis-server") else "redis-server is not installed"

    def fetch(self) -> None:
        if self.missing():
            install_package("redis-server")

    def version(self) -> str:
        return run_tool(["redis-server", "--version"]).split(" sha=")[0]

    def launch(self, folder: Path, port: int) -> Launch:
        settings = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always" if self.flushes else "everysec",
        }
        return Launch(
            ["redis-server", *(part for name, value in settings.items() for part in (f"--{name}", value))], {}
        )

    def address(self, port: int) -> str:
        return f"127.0.0.1:{port}"
