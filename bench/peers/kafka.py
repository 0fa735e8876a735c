"""Apache Kafka from its Maven artefacts, one KRaft node or several; default durability, or an fsync per batch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.cache import cache_folder, cached, run_tool
from bench.peers.peer import SESSION_SECONDS, Consumes, cluster_topic_config
from bench.processes import Launch, free_port

VERSION = "4.3.0"
_CLUSTER_ID = "SGVhZHJhY2VCZW5jaDAwMQ"
_ARTEFACTS = [
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
]
# The options of Kafka's start script. The heap is its default of 1 GB, or half of that per broker of a cluster.
_JAVA = ["java", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"]
_HEAP_MB, _HEAP_MB_IN_CLUSTER = 1024, 512
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


class Kafka:
    protocol = "kafka"
    consumes: Consumes = "gathers"

    def __init__(self, name: str, *, flushes: bool, brokers: int = 1) -> None:
        self.name = name
        self.flushes = flushes
        self.brokers = brokers
        self.topic_config: Mapping[str, str] = cluster_topic_config(brokers)

    def missing(self) -> str | None:
        if shutil.which("java") is None:
            return "no java"
        return None if _jars().exists() else f"Kafka {VERSION} was not fetched"

    def fetch(self) -> None:
        cached(_jars().name, _fetch_jars)

    def version(self) -> str:
        return f"Apache Kafka {VERSION}"

    def launch(self, folder: Path, port: int) -> Launch:
        classes = ["-cp", f"{_jars()}/*", _QUIET]
        files = [folder / f"server-{number}.properties" for number in range(1, self.brokers + 1)]
        if not files[0].exists():
            controllers = [free_port() for _ in files]
            for number, file in enumerate(files, start=1):
                file.write_text(self._properties(folder, number, free_port() if number > 1 else port, controllers))
                format_folder = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(file)]
                run_tool(["java", *classes, *format_folder])
        heap_mb = _HEAP_MB if self.brokers == 1 else _HEAP_MB_IN_CLUSTER
        java = [*_JAVA, f"-Xms{heap_mb}m", f"-Xmx{heap_mb}m", *classes]
        commands = [[*java, "kafka.Kafka", str(file)] for file in files]
        return Launch(commands[0], {}, other_commands=commands[1:])

    def address(self, port: int) -> str:
        return f"127.0.0.1:{port}"

    def _properties(self, folder: Path, number: int, port: int, controllers: Sequence[int]) -> str:
        """Return the configuration of node `number`, from 1; every node is a controller voter."""
        voters = ",".join(f"{voter}@127.0.0.1:{controller}" for voter, controller in enumerate(controllers, start=1))
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(number),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllers[number - 1]}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(folder / f"logs-{number}"),
            "num.partitions": "4",
            "offsets.topic.replication.factor": str(self.brokers),
            "transaction.state.log.replication.factor": str(self.brokers),
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": str(self.brokers),
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "broker.session.timeout.ms": str(SESSION_SECONDS * 1000),
            # Delete the files of deleted topics soon, so that their page cache can be reused in the next round.
            "log.segment.delete.delay.ms": "1000",
        }
        if self.flushes:
            settings["log.flush.interval.messages"] = "1"
        return "".join(f"{name}={value}\n" for name, value in settings.items())


def _jars() -> Path:
    return cache_folder() / f"kafka-{VERSION}"


def _fetch_jars(part: Path) -> None:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in _ARTEFACTS
    )
    project = (
        "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>bench</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )
    pom = part / "pom.xml"
    pom.write_text(project)
    run_tool(["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={part}"])
