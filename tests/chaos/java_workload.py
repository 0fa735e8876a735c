"""Apache Kafka's Java clients: a producer and two groups of one topic.

    java-numbers    written by an idempotent producer with acks=all, read by a group of the classic protocol and by one
                    of the consumer protocol (KIP-848), each of two members in one process

The clients are tests/chaos/KafkaClient.java, compiled once for each run. Their output has the format of the Python
clients, and the same rules check it. `unavailable_reason` returns what is missing where they cannot run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.chaos.checks import check_clients, check_topic
from tests.chaos.client import FLUSH_SECONDS
from tests.chaos.client_workload import ClientWorkload
from tests.chaos.cluster import Cluster
from tests.chaos.cluster_reads import committed_offsets, log_bounds, read_all
from tests.chaos.names import JAVA_NUMBERS
from tests.chaos.namespaces import Host
from tests.chaos.processes import Processes, wait_drained
from tests.chaos.transcript import Log, Transcript
from tests.integration.process import PATIENCE_SECONDS, wait_until

JARS = Path(os.environ.get("HEADRACE_KAFKA_JARS", Path(tempfile.gettempdir()) / "peers" / "kafka-4.3.0"))
SOURCE_FILE = Path(__file__).with_name("KafkaClient.java")
# Three small JVMs share the machine with the cluster: little memory, no compiler or collector threads.
OPTIONS = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
PARTITIONS = 3
WRITER = "java-writer"
GROUPS = {"java-classic-group": "classic", "java-consumer-group": "consumer"}
"""the name of each process and group, and its protocol"""
START_SECONDS = 10 * PATIENCE_SECONDS
CLOSE_SECONDS = 60.0
"""longer than a commit and a close together"""


@cache
def unavailable_reason() -> str | None:
    """Return why Java clients cannot run on this machine; None if they can."""
    java = shutil.which("java")
    if java is None:
        return "java is not installed"
    if not any(JARS.glob("kafka-clients-*.jar")):
        return f"Kafka's jars are not in {JARS} (HEADRACE_KAFKA_JARS)"
    modules = subprocess.run([java, "--list-modules"], check=False, capture_output=True, text=True).stdout
    return None if "jdk.compiler@" in modules else f"{java} has no compiler (jdk.compiler)"


class JavaWorkload(ClientWorkload):
    def __init__(self, cluster: Cluster, processes: Processes, rate: float) -> None:
        self._cluster, self._processes, self._rate = cluster, processes, rate
        self._classes = cluster.folder / "java"
        self.transcripts: dict[str, Transcript] = {}

    def start(self) -> None:
        """Return when all clients have started: a JVM needs a while on a busy machine."""
        self._compile()
        self._cluster.create_topic(JAVA_NUMBERS, PARTITIONS)
        first, second = self._cluster.client_hosts
        self._launch(first, "writer", WRITER)
        for group, protocol in GROUPS.items():
            self._launch(second, "group", group, protocol)
        wait_until(self._are_started, "the Java clients take part", START_SECONDS)

    def supervise(self) -> None:
        self._processes.read_on(self.transcripts)

    def stop_writers(self) -> None:
        self._processes.stop((WRITER,), FLUSH_SECONDS + PATIENCE_SECONDS)

    def wait_finished(self) -> None:
        bounds = log_bounds(self._cluster.bootstrap, JAVA_NUMBERS)
        ends = {partition: end for partition, (_, end) in bounds.items()}
        for group in GROUPS:
            self._wait_committed(group, ends)

    def stop_readers(self) -> None:
        self._processes.stop(GROUPS, CLOSE_SECONDS)

    def check(self) -> list[str]:
        self.supervise()
        return check_java_clients(self.transcripts, read_all(self._cluster.bootstrap, JAVA_NUMBERS))

    def counts(self) -> dict[str, int]:
        self.supervise()
        counts = {f"Java: records acknowledged in {JAVA_NUMBERS}": self._count(WRITER, "ack")}
        for group, protocol in GROUPS.items():
            counts[f"Java: commits confirmed, {protocol} protocol"] = self._count(group, "committed")
        return counts

    def _compile(self) -> None:
        compiler = ["java", *OPTIONS, "-m", "jdk.compiler/com.sun.tools.javac.Main"]
        command = [
            *compiler,
            "-nowarn",
            "-cp",
            os.pathsep.join(map(str, JARS.glob("*.jar"))),
            "-d",
            str(self._classes),
            str(SOURCE_FILE),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, f"{SOURCE_FILE} cannot be compiled:\n{done.stderr}"

    def _are_started(self) -> bool:
        self.supervise()
        return bool(self._count(WRITER, "ack")) and all(self._count(group, "committed") for group in GROUPS)

    def _launch(self, host: Host, role: str, name: str, protocol: str = "") -> None:
        arguments = [role, name, self._cluster.bootstrap, JAVA_NUMBERS, str(PARTITIONS), str(self._rate)]
        class_path = f"{self._classes}:{JARS}/*"
        command = ["java", *OPTIONS, "-cp", class_path, SOURCE_FILE.stem, *arguments, name, protocol]
        self.transcripts[name] = Transcript(self._processes.launch_command(host, name, command))

    def _count(self, name: str, kind: str) -> int:
        return sum(entry[0] == kind for entry in self.transcripts[name].entries)

    def _wait_committed(self, group: str, ends: dict[int, int]) -> None:
        found: dict[int, int] = {}

        def all_committed() -> bool:
            self.supervise()
            found.update(committed_offsets(self._cluster.bootstrap, group, JAVA_NUMBERS))
            return found == ends

        goal = f"{group!r} has committed {ends}"
        wait_drained(all_committed, goal, lambda: sum(found.values()), lambda: f"it has committed {found}")


def check_java_clients(transcripts: Mapping[str, Transcript], final: Mapping[int, Log]) -> list[str]:
    """Check the transcripts by the rules of the Python clients; the process of each group has its name."""
    groups = {group: group for group in GROUPS}
    return check_topic(JAVA_NUMBERS, transcripts, groups, final) + check_clients(transcripts, (WRITER,))
