"""A running peer: its processes, its address, and the topics that workloads create."""

from __future__ import annotations

import itertools
import shutil
import time
from concurrent.futures import Future
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from bench.failure import BenchFailure
from bench.load import start_rkload
from bench.processes import ServerProcess, accepts_connections, free_port, is_ready

if TYPE_CHECKING:
    from bench.peers.peer import Peer

_READY_SECONDS_MAX = 120
_POLL_SECONDS = 0.05
_ADMIN_SECONDS_MAX = 120
# Kafka rejects a request that would create too many metadata records at once.
_PARTITIONS_PER_REQUEST = 2000


class Server:
    """A running server with its own data folder; `close` stops it and removes the folder."""

    _topic_numbers = itertools.count(1)

    def __init__(self, peer: Peer, base: Path) -> None:
        self.peer = peer
        self.port = free_port()
        self.folder = Path(mkdtemp(prefix=f"{peer.name.replace('/', '-')}-", dir=base))
        self._admin: AdminClient | None = None
        self.process = self._launch()

    @property
    def address(self) -> str:
        return self.peer.address(self.port)

    def wait_ready(self) -> None:
        """Wait until a Kafka peer returns the metadata of all brokers, /readyz of Headrace returns 200, or another
        peer accepts connections."""
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while not self._is_ready():
            self.process.check_alive()
            if time.monotonic() > deadline:
                raise BenchFailure(f"{self.peer.name} did not become ready within {_READY_SECONDS_MAX} s")
            time.sleep(_POLL_SECONDS)

    def restart(self) -> None:
        """Start the server again on the same data; the old process must have exited."""
        self._admin = None
        self.process = self._launch()

    def create_topic(self, partitions: int) -> str:
        """Create a topic, and write one small record to each partition."""
        name = f"bench-{next(self._topic_numbers)}"
        admin = self._admin_client()
        first = min(partitions, _PARTITIONS_PER_REQUEST)
        topic = NewTopic(name, first, self.peer.brokers, config=dict(self.peer.topic_config))
        self._wait(admin.create_topics([topic])[name])
        for total in range(first, partitions, _PARTITIONS_PER_REQUEST):
            grown = NewPartitions(name, min(partitions, total + _PARTITIONS_PER_REQUEST))
            self._wait(admin.create_partitions([grown])[name])
        self._wait_for_partitions(name, partitions)
        # Kafka responds before the topic accepts writes, and the first write to a partition creates its files; neither
        # must be part of a measurement.
        start_rkload("produce", self.address, name, partitions, 100, partitions, {}).result()
        return name

    def delete_topic(self, name: str) -> None:
        self._wait(self._admin_client().delete_topics([name])[name])

    def close(self) -> None:
        self._admin = None
        self.process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self) -> ServerProcess:
        launch = self.peer.launch(self.folder, self.port)
        return ServerProcess(self.peer.name, launch, self.folder / "output.log")

    def _is_ready(self) -> bool:
        if not accepts_connections(self.port):
            return False
        if self.peer.protocol == "rest":
            return is_ready(self.port)
        if self.peer.protocol != "kafka":
            return True
        try:
            return len(self._admin_client().list_topics(timeout=5).brokers) == self.peer.brokers
        except KafkaException:
            return False

    def _wait_for_partitions(self, topic: str, count: int) -> None:
        deadline = time.monotonic() + _ADMIN_SECONDS_MAX
        while len(self._admin_client().list_topics(topic, timeout=30).topics[topic].partitions) < count:
            if time.monotonic() > deadline:
                raise BenchFailure(f"{self.peer.name}: {topic} did not get its {count} partitions")
            time.sleep(_POLL_SECONDS)

    def _wait(self, future: Future[None]) -> None:
        try:
            future.result(_ADMIN_SECONDS_MAX)
        except (KafkaException, TimeoutError) as error:
            raise BenchFailure(f"{self.peer.name}: {error}") from error

    def _admin_client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        return self._admin
