"""Apache Kafka, one KRaft node, from its Maven artefacts; default durability, or an fsync for every batch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from bench.cache import cache_folder, cached, run_tool
from bench.processes import Launch
from bench.sockets import free_port

VERSION = "4.3.0"
_CLUSTER_ID = "SGVhZHJhY2VCZW5jaDAwMQ"
_ARTEFACTS = [
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
]
# As Kafka's own start script sets them, with the heap at the 1 GB that it gives a broker.
_JAVA = [
    "java",
    "-Xms1G",
    "-Xmx1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
]
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


class Kafka:
    protocol = "kafka"
    topic_config: Mapping[str, str] = {}

    def __init__(self, name: str, *, flushes: bool) -> None:
        self.name = name
        self.flushes = flushes

    def missing(self) -> str | None:
        if shutil.which("java") is None:
            return "no java"
        return None if _jars().exists() else f"Kafka {VERSION} was not fetched"

    def fetch(self) -> None:
        cached(_jars().name, _fetch_jars)

    def version(self) -> str:
        return f"Apache Kafka {VERSION}"

    def launch(self, folder: Path, port: int) -> Launch:
        properties = folder / "server.properties"
        classes = ["-cp", f"{_jars()}/*", _QUIET]
        if not properties.exists():
            properties.write_text(self._properties(folder, port))
            run_tool(
                [
                    "java",
                    *classes,
                    "kafka.tools.StorageTool",
                    "format",
                    "-t",
                    _CLUSTER_ID,
                    "-c",
                    str(properties),
                ]
            )
        return Launch([*_JAVA, *classes, "kafka.Kafka", str(properties)], {})

    def address(self, port: int) -> str:
        return f"127.0.0.1:{port}"

    def _properties(self, folder: Path, port: int) -> str:
        controller = free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(folder / "logs"),
            "num.partitions": "4",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # Files of deleted topics go soon, so that one round's page cache serves the next.
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
