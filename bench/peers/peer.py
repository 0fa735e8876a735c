"""What the harness needs to know of a server that it measures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from bench.processes import Launch


class Peer(Protocol):
    """One server in one setting. `flushes`: an acknowledgement means that the record is on disk."""

    name: str
    flushes: bool
    protocol: str  # kafka, redis, nats or amqp: decides which load can be put on it
    topic_config: Mapping[str, str]

    def missing(self) -> str | None:
        """Why it cannot be measured here, or None."""

    def fetch(self) -> None:
        """Get what it needs; raises BenchFailure."""

    def version(self) -> str: ...

    def launch(self, folder: Path, port: int) -> Launch:
        """Prepare the data folder, if that has not happened, and say how to start."""

    def address(self, port: int) -> str:
        """Where a client finds it."""
