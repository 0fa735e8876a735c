"""Spark on topics: scans of a whole topic, many small micro-batches, and the archive.

Peers are Spark sources, each with its own broker (peers/spark.py). CPU time is the sum of broker and Spark. All scan
the same rows: keys of 12 digits, values of words (load/rkload.c). For the Parquet source, Spark writes them to files
once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from bench.failure import BenchFailure
from bench.figures import Metric
from bench.load.spark import run_spark_command
from bench.peers.spark import Spark
from bench.server import Server
from bench.workloads.workload import PARTITIONS, Trial, Workload

ALL_ROWS = Metric("all_rows_per_s", "rows/s, all columns", "higher", 0)
ALL_CPU = Metric("all_cpu_s_per_m", "CPU s/M rows", "lower", 2)
SUM_ROWS = Metric("sum_rows_per_s", "rows/s, sum(length(value))", "higher", 0)
VALUE_ROWS = Metric("value_rows_per_s", "the same with columns=value", "higher", 0)
NOOP_MS = Metric("noop_ms", "ms per trigger, to noop", "lower", 0)
TOPIC_MS = Metric("topic_ms", "ms per trigger, to a topic", "lower", 0)
ARCHIVE_MB = Metric("archive_mb_per_s", "archived MB/s of keys and values", "higher", 1)

_KEYS = 1_000_000
_KEY_SIZE = 12
_FIRST_SIZE = 100  # the small record in each partition of a new topic
_TRIGGERS = 30
# Kafka's names of compression types, and the closest ones in Parquet.
_IN_PARQUET = {"none": "uncompressed", "lz4": "lz4_raw", "zstd": "zstd"}


class Scan(Workload):
    metrics = (ALL_ROWS, SUM_ROWS, VALUE_ROWS, ALL_CPU)
    plotted = (ALL_ROWS, SUM_ROWS)

    def __init__(self, name: str, *, records: int, size: int, compression: str, peers: Sequence[str]) -> None:
        self.name = name
        compression_text = "uncompressed" if compression == "none" else compression
        self.title = f"Spark scans {records:,} records of {size} B, {compression_text}, 4 partitions, local[2]"
        self.peers = peers
        self._records = records
        self._size = size
        self._compression = compression
        self._topics: dict[Server, str] = {}

    def prepare(self, trial: Trial) -> None:
        server, records = trial.server, trial.scaled(self._records)
        topic = self._topics[server] = server.create_topic(PARTITIONS)
        _fill(trial, topic, records, self._size, self._compression)
        if _source(server) == "parquet":
            run_spark_command(server, "write_parquet", topic=topic, compression=_IN_PARQUET[self._compression])
            server.delete_topic(topic)

    def measure(self, trial: Trial) -> dict[str, float]:
        server, records = trial.server, trial.scaled(self._records)
        os.sync()
        before = server.process.cpu_seconds()
        all_columns = self._scan(trial, "noop")
        cpu_s = server.process.cpu_seconds() - before
        figures = {
            ALL_ROWS.key: records / all_columns["wall_s"],
            ALL_CPU.key: cpu_s / (records / 1e6),
            SUM_ROWS.key: records / self._scan(trial, "sum")["wall_s"],
        }
        if _source(server) == "headrace":
            figures[VALUE_ROWS.key] = records / self._scan(trial, "sum", columns="value")["wall_s"]
        return figures

    def _scan(self, trial: Trial, query: str, **settings: str) -> dict[str, Any]:
        response = run_spark_command(trial.server, "scan", topic=self._topics[trial.server], query=query, **settings)
        expected = trial.scaled(self._records) * self._size + PARTITIONS * _FIRST_SIZE
        if query == "sum" and response["bytes"] != expected:
            raise BenchFailure(
                f"{trial.server.peer.name}: {response['bytes']:,} bytes of values instead of {expected:,}"
            )
        return response


class MicroBatches(Workload):
    name = "spark-batches"
    title = f"a streaming query's micro-batches of a row from each of 4 partitions: median of {_TRIGGERS} triggers"
    metrics = (NOOP_MS, TOPIC_MS)
    plotted = metrics

    def __init__(self, *, peers: Sequence[str]) -> None:
        self.peers = peers
        self._topics: dict[Server, str] = {}

    def prepare(self, trial: Trial) -> None:
        topic = self._topics[trial.server] = trial.server.create_topic(PARTITIONS)
        _fill(trial, topic, _TRIGGERS * PARTITIONS, 100, "none")

    def measure(self, trial: Trial) -> dict[str, float]:
        server = trial.server
        figures = {NOOP_MS.key: self._trigger_ms(server, None)}
        if _source(server) != "rate-micro-batch":
            target = server.create_topic(PARTITIONS)
            figures[TOPIC_MS.key] = self._trigger_ms(server, target)
            server.delete_topic(target)
        return figures

    def _trigger_ms(self, server: Server, target: str | None) -> float:
        response = run_spark_command(server, "batches", topic=self._topics[server], triggers=_TRIGGERS, target=target)
        milliseconds: float = response["trigger_ms"]
        return milliseconds


class ArchiveWrite(Workload):
    name = "spark-archive"
    metrics = (
        ARCHIVE_MB,
        Metric("file_mb", "Parquet MB", "lower", 0),
        Metric("cpu_s_per_gb", "CPU s/GB", "lower", 1),
    )
    plotted = metrics[:1]

    def __init__(self, *, records: int, size: int, peers: Sequence[str]) -> None:
        self.title = f"the archive job writes {records:,} records of {size} B"
        self.peers = peers
        self._records = records
        self._size = size
        self._topics: dict[Server, str] = {}

    def prepare(self, trial: Trial) -> None:
        topic = self._topics[trial.server] = trial.server.create_topic(PARTITIONS)
        _fill(trial, topic, trial.scaled(self._records), self._size, "none")

    def measure(self, trial: Trial) -> dict[str, float]:
        os.sync()
        server, records = trial.server, trial.scaled(self._records)
        before = server.process.cpu_seconds()
        response = run_spark_command(server, "archive", topic=self._topics[server])
        cpu_s = server.process.cpu_seconds() - before
        if response["records"] != records + PARTITIONS:
            raise BenchFailure(f"{response['records']:,} records were archived instead of {records + PARTITIONS:,}")
        size = records * (self._size + _KEY_SIZE)
        return {
            ARCHIVE_MB.key: size / response["wall_s"] / 1e6,
            "file_mb": response["file_bytes"] / 1e6,
            "cpu_s_per_gb": cpu_s / (size / 1e9),
        }


def _fill(trial: Trial, topic: str, records: int, size: int, compression: str) -> None:
    settings = {"keys": str(_KEYS), "text": "1", "compression.codec": compression}
    trial.start_load("produce", topic, records, size, **settings).result()


def _source(server: Server) -> str:
    assert isinstance(server.peer, Spark)
    return server.peer.source
