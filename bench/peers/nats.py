"""NATS JetStream with file storage, built by Go: with an fsync per write, or every two minutes (the default)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from bench.cache import cache_folder, cached, run_tool
from bench.peers.peer import Consumes
from bench.processes import Launch

VERSION = "v2.12.1"


class Nats:
    protocol = "nats"
    consumes: Consumes = "asks"
    brokers = 1
    topic_config: Mapping[str, str] = {}

    def __init__(self, name: str, *, flushes: bool) -> None:
        self.name = name
        self.flushes = flushes

    def missing(self) -> str | None:
        return None if _program().exists() else f"NATS {VERSION} was not fetched"

    def fetch(self) -> None:
        cached(_program().parent.name, _build)

    def version(self) -> str:
        return run_tool([str(_program()), "--version"]).strip()

    def launch(self, folder: Path, port: int) -> Launch:
        sync = "sync_interval: always" if self.flushes else ""
        config = folder / "nats.conf"
        config.write_text(f"listen: 127.0.0.1:{port}\njetstream {{ store_dir: {str(folder)!r}\n {sync} }}\n")
        return Launch([str(_program()), "-c", str(config)], {})

    def address(self, port: int) -> str:
        return f"nats://127.0.0.1:{port}"


def _program() -> Path:
    built = cache_folder() / f"nats-{VERSION}" / "nats-server"
    installed = shutil.which("nats-server")
    return built if built.exists() or installed is None else Path(installed)


def _build(part: Path) -> None:
    run_tool(["go", "install", f"github.com/nats-io/nats-server/v2@{VERSION}"], environment={"GOBIN": str(part)})
