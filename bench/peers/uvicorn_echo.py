"""A minimal ASGI application on uvicorn, httptools and uvloop: the upper bound for HTTP in one Python process.

It stores nothing; `flushes` is set so that it is compared with Headrace's durable configuration.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.peers.peer import Consumes
from bench.processes import Launch

_PACKAGES = ("uvicorn", "httptools", "uvloop")
_QUIET = ["--no-access-log", "--log-level", "warning", "--lifespan", "off"]


class UvicornEcho:
    name = "uvicorn-echo"
    flushes = True
    consumes: Consumes = "asks"
    protocol = "echo"
    brokers = 1
    topic_config: Mapping[str, str] = {}

    def missing(self) -> str | None:
        try:
            self.version()
        except PackageNotFoundError as error:
            return f"{error.name} is not installed"
        return None

    def fetch(self) -> None:
        """Part of the development requirements."""

    def version(self) -> str:
        return ", ".join(f"{name} {version(name)}" for name in _PACKAGES)

    def launch(self, _folder: Path, port: int) -> Launch:
        server = ["--host", "127.0.0.1", "--port", str(port), "--loop", "uvloop", "--http", "httptools", *_QUIET]
        # With its own folder as the import path, so that it does not load the harness.
        return Launch(
            [sys.executable, "-m", "uvicorn", "--app-dir", str(Path(__file__).parent), "echo:app", *server], {}
        )

    def address(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"
