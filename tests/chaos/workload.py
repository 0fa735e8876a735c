"""The clients that work while the cluster is hurt: writers, a reader, a group, and copiers that copy exactly once.

    numbers   written at the full rate, read by the reader and by the group
    source    written slowly, copied in transactions to `copies` (see tests/compat/copier.py)
    jobs      a queue (see tests/chaos/queue_workload.py)

Every client is a process on a host that can be cut off; the harness itself reads only when all is healed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tests.chaos.client import FEEDER, FLUSH_SECONDS, GAVE_UP
from tests.chaos.cluster import Cluster
from tests.chaos.namespaces import Host
from tests.chaos.processes import DRAIN_SECONDS, Processes, Stuck, wait_drained
from tests.chaos.queue_client import JOBS
from tests.chaos.queue_workload import QueueWorkload
from tests.chaos.transcript import Log, Transcript
from tests.compat.copier import TARGET_PARTITIONS
from tests.integration.process import PATIENCE_SECONDS

NUMBERS, SOURCE, COPIES = "numbers", "source", "copies"
PARTITIONS = {NUMBERS: 6, SOURCE: 4, COPIES: TARGET_PARTITIONS, JOBS: 3}
GROUP = "members"
WRITERS = {"w1": NUMBERS, "w2": NUMBERS, FEEDER: SOURCE}
READER = "reader"
MEMBERS = ("member-1", "member-2")
COPIERS = ("copier-1", "copier-2")


class Workload:
    def __init__(self, cluster: Cluster, folder: Path, rate: float, source_rate: float, queue_rate: float) -> None:
        self._cluster = cluster
        self._rates = {NUMBERS: rate / 2, SOURCE: source_rate}
        self._processes = Processes(folder)
        self.queue = QueueWorkload(cluster, self._processes, queue_rate)
        self.transcripts: dict[str, Transcript] = {}
        self.copier_starts = 0
        self.given_up = 0

    def start(self) -> None:
        first, second = self._cluster.client_hosts
        for name, topic in WRITERS.items():
            self._launch_client(first, "writer", name, topic)
        self._launch_client(second, "reader", READER, NUMBERS)
        for name in MEMBERS:
            self._launch_client(second, "member", name, NUMBERS)
        for name in COPIERS:
            self._launch_copier(name)
        self.queue.start()

    def supervise(self) -> None:
        """Start copiers that ended, as those do that were fenced or refused, and members whose library hangs. The
        others end only when they are told."""
        for name in COPIERS:
            if self._processes.exit_code(name) is not None:
                self._launch_copier(name)
        for name in MEMBERS:
            if self._processes.exit_code(name) == GAVE_UP:
                self.given_up += 1
                self._launch_client(self._cluster.client_hosts[1], "member", name, NUMBERS)
        self._processes.read_on(self.transcripts)
        self.queue.supervise()

    def stop_writers(self) -> None:
        self._processes.stop(WRITERS, FLUSH_SECONDS + PATIENCE_SECONDS)
        self.queue.stop_publisher()
        self._read_on()

    def stop_readers(self) -> None:
        self._processes.stop((READER, *MEMBERS), PATIENCE_SECONDS)
        self.queue.stop_members()
        self._read_on()

    def acknowledged(self) -> Iterator[tuple[float, int]]:
        """Every record of `numbers` that the writers were told is there: when, and in which partition."""
        for name, topic in WRITERS.items():
            if topic == NUMBERS and name in self.transcripts:
                self.transcripts[name].read_on()
                for entry in self.transcripts[name].entries:
                    if entry[0] == "ack":
                        yield entry[1] / 1e9, entry[2]

    def kill(self) -> None:
        """Whatever still runs; the copiers end in no other way."""
        self._processes.kill()

    # --- when the writers have ended and all is healed ---

    def wait_read(self, ends: dict[int, int]) -> None:
        """Until the reader was given all there is."""
        stands = dict.fromkeys(ends, 0)
        seen = 0

        def at_the_end() -> bool:
            nonlocal seen
            self.supervise()
            entries = self.transcripts[READER].entries
            for entry in entries[seen:]:
                if entry[0] == "poll":
                    stands[entry[2]] = entry[3][-1][0] + 1
            seen = len(entries)
            return stands == ends

        wait_drained(at_the_end, f"the reader is at {ends}", lambda: f"it is at {stands}")

    def wait_committed(self, ends: dict[int, int]) -> None:
        """Until the group has committed all there is."""
        found: dict[int, int] = {}

        def all_committed() -> bool:
            self.supervise()
            found.update(committed_offsets(self._cluster.bootstrap, GROUP, NUMBERS))
            return found == ends

        wait_drained(all_committed, f"the group has committed {ends}", lambda: f"it has committed {found}")

    def wait_copied(self, count: int) -> None:
        """Until the copiers have copied so many records."""
        copied = 0

        def all_copied() -> bool:
            nonlocal copied
            self.supervise()
            copied = sum(len(log) for log in read_all(self._cluster.bootstrap, COPIES).values())
            return copied >= count

        wait_drained(all_copied, f"{count} records are copied", lambda: f"{copied} are")

    def _read_on(self) -> None:
        for transcript in self.transcripts.values():
            transcript.read_on()

    def _launch_client(self, host: Host, role: str, name: str, topic: str) -> None:
        group = GROUP if role == "member" else ""
        rate = str(self._rates[topic])
        arguments = [role, name, self._cluster.bootstrap, topic, str(PARTITIONS[topic]), rate, group]
        path = self._processes.launch(host, name, ["tests.chaos.client", *arguments])
        self.transcripts.setdefault(name, Transcript(path))

    def _launch_copier(self, name: str) -> None:
        self.copier_starts += 1
        arguments = ["tests.compat.copier", "confluent", self._cluster.bootstrap, SOURCE, COPIES, name]
        self._processes.launch(self._cluster.client_hosts[0], name, arguments)


def read_all(bootstrap: str, topic: str, isolation: str = "read_committed") -> dict[int, Log]:
    """One pass over a topic from its beginning to its present end."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "reads everything",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 50,
        "log_level": 0,
    }
    unfinished = set(range(PARTITIONS[topic]))
    logs: dict[int, Log] = {partition: [] for partition in unfinished}
    deadline = time.monotonic() + DRAIN_SECONDS
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in unfinished])
        while unfinished:
            if time.monotonic() > deadline:
                raise Stuck(f"{topic} cannot be read to its end within {DRAIN_SECONDS:.0f} s")
            for message in consumer.consume(1000, timeout=0.2):
                error, partition = message.error(), message.partition() or 0
                if error is None:
                    logs[partition].append((message.offset() or 0, message.value() or b""))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(partition)
    return logs


def committed_offsets(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """What the group has committed, as far as its coordinator answers at all."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0}
    with closing(Consumer(settings)) as consumer:
        try:
            places = [TopicPartition(topic, partition) for partition in range(PARTITIONS[topic])]
            found = consumer.committed(places, timeout=10.0)
        except KafkaException:
            return {}
    return {place.partition: max(place.offset, 0) for place in found}
