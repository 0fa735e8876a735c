"""What the harness needs to know of a server that it measures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from bench.processes import Launch

Consumes = Literal["asks", "prefetches", "gathers"]
SESSION_SECONDS = 30
"""How long a cluster waits for a silent broker: load and brokers fill the machine, and nobody is to be voted out."""


def cluster_topic_config(brokers: int) -> dict[str, str]:
    """What is recommended for replicated topics, of every cluster the same: an acknowledgement means two replicas at
    least, and as long as nobody falls behind it means all of them."""
    return {"min.insync.replicas": "2"} if brokers > 1 else {}


class Peer(Protocol):
    """One server in one setting. `flushes`: an acknowledgement means that the record is on disk.

    `consumes`: how messages are taken from it as a queue. Who "asks" waits for each batch and for what became of it;
    who "prefetches" has messages at hand and settles batch by batch; who "gathers" settles many batches together.
    """

    name: str
    flushes: bool
    consumes: Consumes
    protocol: str  # kafka, redis, nats, amqp, rest, echo or amqp-http: decides which load can be put on it
    brokers: int  # how many it is made of; each topic has a replica on every one
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
