"""The interface of a server that is measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from bench.processes import Launch

Consumes = Literal["asks", "prefetches", "gathers"]
SESSION_SECONDS = 30
"""The session timeout in a cluster: long, because load generators and brokers share the machine's CPUs."""


def cluster_topic_config(brokers: int) -> dict[str, str]:
    """Return the recommended config of replicated topics, the same for all clusters: acknowledged by at least two
    replicas, and by all while they are in sync."""
    return {"min.insync.replicas": "2"} if brokers > 1 else {}


class Peer(Protocol):
    """One server in one configuration. `flushes`: an acknowledged record is on disk.

    `consumes` is how a consumer uses it as a queue: "asks" requests each batch and waits for the response to its
    settlement; "prefetches" receives messages in advance and settles each batch; "gathers" settles many batches with
    one request.
    """

    name: str
    flushes: bool
    consumes: Consumes
    protocol: str  # kafka, redis, nats, amqp, rest, echo or amqp-http: determines the load generator
    brokers: int  # each topic has a replica on every broker
    topic_config: Mapping[str, str]

    def missing(self) -> str | None:
        """Return the reason why it cannot be measured on this machine, or None."""

    def fetch(self) -> None:
        """Download or build its programs; raise BenchFailure."""

    def version(self) -> str: ...

    def launch(self, folder: Path, port: int) -> Launch:
        """Prepare the data folder if it is new, and return the commands that start the server."""

    def address(self, port: int) -> str:
        """Return the address for clients."""
