"""All clients of a run: writers, a reader, a group, transactional copiers, and the workloads of other kinds.

    numbers       written at the full rate, read by the reader and by the group
    source        written slowly, copied in transactions to `copies` (see tests/compat/copier.py)
    jobs          a queue (see tests/chaos/queue_workload.py)
    rest-jobs     a queue behind two gateways (see tests/chaos/rest_workload.py)
    shared        a Kafka share group (see tests/chaos/share_workload.py)
    java-numbers  written and read by Kafka's Java clients (see tests/chaos/java_workload.py)
    spark-source  copied by a Spark query to `spark-copies` (see tests/chaos/spark_workload.py)
    changing      changed by the administrator (see tests/chaos/admin_workload.py)

Every client is a process on a host that faults can isolate; the harness itself reads only after healing.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos import java_workload, spark_workload
from tests.chaos.admin_workload import AdminWorkload
from tests.chaos.client import FLUSH_SECONDS
from tests.chaos.client_workload import ClientWorkload
from tests.chaos.cluster import Cluster
from tests.chaos.cluster_reads import committed_offsets, read_all
from tests.chaos.java_workload import JavaWorkload
from tests.chaos.names import (
    COPIERS,
    COPIES,
    GROUP,
    MEMBERS,
    NUMBERS,
    READER,
    SOURCE,
    WRITERS,
)
from tests.chaos.namespaces import Host
from tests.chaos.processes import Processes, wait_drained
from tests.chaos.queue_workload import QueueWorkload
from tests.chaos.rest_workload import RestWorkload
from tests.chaos.run_result import Options
from tests.chaos.share_workload import ShareWorkload
from tests.chaos.spark_workload import SparkWorkload
from tests.chaos.transcript import Transcript
from tests.compat.copier import TARGET_PARTITIONS
from tests.compat.time_limit import LIBRARY_HUNG
from tests.integration.process import PATIENCE_SECONDS

WRONG_CLOCKS = ("w1", MEMBERS[0], COPIERS[0])
"""Clients whose wall clock may jump. They record times of the monotonic clock; clients of queues record wall time."""
PARTITIONS = {NUMBERS: 6, SOURCE: 4, COPIES: TARGET_PARTITIONS}

SPARK_IS_OFF = "it needs much of the machine and is off in short runs (--spark)"


class Workload:
    def __init__(self, cluster: Cluster, options: Options) -> None:
        self._cluster = cluster
        self._rates = {NUMBERS: options.rate / 2, SOURCE: options.source_rate}
        self._processes = Processes(options.folder / "clients")
        self.transcripts: dict[str, Transcript] = {}
        self.copier_starts = 0
        self.client_workloads: list[ClientWorkload] = [
            QueueWorkload(cluster, self._processes, options.queue_rate),
            RestWorkload(cluster, self._processes, options.seed, options.rest_rate),
            ShareWorkload(cluster, self._processes, options.share_rate),
            AdminWorkload(cluster, self._processes, options.seed, options.changing_rate),
        ]
        self.left_out: dict[str, str] = {}
        """workloads that are not possible here, and why"""
        if (reason := java_workload.unavailable_reason()) is None:
            self.client_workloads.append(JavaWorkload(cluster, self._processes, options.java_rate))
        else:
            self.left_out["Java producer and consumers"] = reason
        if (reason := spark_workload.unavailable_reason() if options.spark else SPARK_IS_OFF) is None:
            self.client_workloads.append(SparkWorkload(cluster, self._processes, options.seed, options.spark_rate))
        else:
            self.left_out["Spark query"] = reason

    @property
    def libraries_hung(self) -> int:
        return self._processes.libraries_hung

    def start(self) -> None:
        for topic, partitions in PARTITIONS.items():
            self._cluster.create_topic(topic, partitions)
        first, second = self._cluster.client_hosts
        for name, topic in WRITERS.items():
            self._launch_client(first, "writer", name, topic)
        self._launch_client(second, "reader", READER, NUMBERS)
        for name in MEMBERS:
            self._launch_client(second, "member", name, NUMBERS)
        for name in COPIERS:
            self._launch_copier(name)
        for workload in self.client_workloads:
            workload.start()

    def supervise(self) -> None:
        """Restart copiers that ended because they were fenced or got a fatal error, and members whose library hung. The
        others end only when they are stopped."""
        for name in COPIERS:
            if self._processes.exit_code(name) is not None:
                self._launch_copier(name)
        for name in MEMBERS:
            self._processes.restart_hung(name)
        self._processes.read_on(self.transcripts, restarted=(LIBRARY_HUNG,))
        for workload in self.client_workloads:
            workload.supervise()

    def stop_writers(self) -> None:
        self._processes.stop(WRITERS, FLUSH_SECONDS + PATIENCE_SECONDS)
        for workload in self.client_workloads:
            workload.stop_writers()
        self._read_on()

    def stop_readers(self) -> None:
        self._processes.stop((READER, *MEMBERS), PATIENCE_SECONDS)
        for workload in self.client_workloads:
            workload.stop_readers()
        self._read_on()

    def acknowledged(self) -> Iterator[tuple[float, int]]:
        """Yield the time and partition of every acknowledged record of `numbers`."""
        for name, topic in WRITERS.items():
            if topic == NUMBERS and name in self.transcripts:
                self.transcripts[name].read_on()
                for entry in self.transcripts[name].entries:
                    if entry[0] == "ack":
                        yield entry[1] / 1e9, entry[2]

    def kill(self) -> None:
        """Kill all processes; the copiers end in no other way."""
        for workload in self.client_workloads:
            workload.kill()
        self._processes.kill()

    # --- after healing, when the writers have ended ---

    def wait_read(self, ends: dict[int, int]) -> None:
        """Wait until the reader has received all records."""
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

        goal = f"the reader is at {ends}"
        wait_drained(at_the_end, goal, lambda: sum(stands.values()), lambda: f"it is at {stands}")

    def wait_committed(self, ends: dict[int, int]) -> None:
        """Wait until the group has committed the end of every partition."""
        found: dict[int, int] = {}

        def all_committed() -> bool:
            self.supervise()
            found.update(committed_offsets(self._cluster.bootstrap, GROUP, NUMBERS))
            return found == ends

        goal = f"the group has committed {ends}"
        wait_drained(all_committed, goal, lambda: sum(found.values()), lambda: f"it has committed {found}")

    def wait_copied(self, count: int) -> None:
        """Wait until the copiers have copied this many records."""
        copied = 0

        def all_copied() -> bool:
            nonlocal copied
            self.supervise()
            copied = sum(len(log) for log in read_all(self._cluster.bootstrap, COPIES).values())
            return copied >= count

        wait_drained(all_copied, f"{count} records are copied", lambda: copied, lambda: f"{copied} are copied")

    def _read_on(self) -> None:
        for transcript in self.transcripts.values():
            transcript.read_on()

    def _launch_client(self, host: Host, role: str, name: str, topic: str) -> None:
        group = GROUP if role == "member" else ""
        rate = str(self._rates[topic])
        arguments = [role, name, self._cluster.bootstrap, topic, str(PARTITIONS[topic]), rate, group]
        host = self._cluster.wrong_clock_host(host) if name in WRONG_CLOCKS else host
        path = self._processes.launch(host, name, ["tests.chaos.client", *arguments])
        self.transcripts.setdefault(name, Transcript(path))

    def _launch_copier(self, name: str) -> None:
        self.copier_starts += 1
        arguments = ["tests.compat.copier", "confluent", self._cluster.bootstrap, SOURCE, COPIES, name]
        host = self._cluster.client_hosts[0]
        host = self._cluster.wrong_clock_host(host) if name in WRONG_CLOCKS else host
        self._processes.launch(host, name, arguments)
