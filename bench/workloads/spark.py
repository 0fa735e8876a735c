"""Spark on topics: scans of a whole topic, many small micro-batches, and the archive.

Peers are Spark sources, each with a broker of its own (peers/spark.py). CPU is that of broker and Spark together. All
scan the same rows: keys of 12 digits, values of words (load/rkload.c). For its Parquet source Spark itself has written
them to files once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from bench.failure import BenchFailure
from bench.figures import Metric
from bench.load.spark import tell_spark
from bench.peers.spark import Spark
from bench.server import Server
from bench.workloads.workload import PARTITIONS, Turn, Workload

ALL_ROWS = Metric("all_rows_per_s", "rows/s, all columns", "higher", 0)
ALL_CPU = Metric("all_cpu_s_per_m", "CPU s/M rows", "lower", 2)
SUM_ROWS = Metric("sum_rows_per_s", "rows/s, sum(length(value))", "higher", 0)
VALUE_ROWS = Metric("value_rows_per_s", "the same with columns=value", "higher", 0)
NOOP_MS = Metric("noop_ms", "ms per trigger, to noop", "lower", 0)
TOPIC_MS = Metric("topic_ms", "ms per trigger, to a topic", "lower", 0)
ARCHIVE_MB = Metric("archive_mb_per_s", "archived MB/s of keys and values", "higher", 1)

_KEYS = 1_000_000
_KEY_SIZE = 12
_FIRST_SIZE = 100  # the small record that each partition of a new topic holds
_TRIGGERS = 30
# As Kafka's producers call a compression, and as Spark calls what comes nearest to it in Parquet.
_IN_PARQUET = {"none": "uncompressed", "lz4": "lz4_raw", "zstd": "zstd"}


class Scan(Workload):
    metrics = (ALL_ROWS, SUM_ROWS, VALUE_ROWS, ALL_CPU)
    plotted = (ALL_ROWS, SUM_ROWS)

    def __init__(self, name: str, *, records: int, size: int, compression: str, peers: Sequence[str]) -> None:
        self.name = name
        how = "uncompressed" if compression == "none" else compression
        self.title = f"Spark scans {records:,} records of {size} B, {how}, 4 partitions, local[2]"
        self.peers = peers
        self._records = records
        self._size = size
        self._compression = compression
        self._topics: dict[Server, str] = {}

    def prepare(self, turn: Turn) -> None:
        server, records = turn.server, turn.scaled(self._records)
        topic = self._topics[server] = server.create_topic(PARTITIONS)
        _fill(turn, topic, records, self._size, self._compression)
        if _source(server) == "parquet":
            tell_spark(server, "write_parquet", topic=topic, compression=_IN_PARQUET[self._compression])
            server.delete_topic(topic)

    def measure(self, turn: Turn) -> dict[str, float]:
        server, records = turn.server, turn.scaled(self._records)
        os.sync()
        before = server.process.cpu_seconds()
        everything = self._scan(turn, "noop")
        cpu_s = server.process.cpu_seconds() - before
        figures = {
            ALL_ROWS.key: records / everything["wall_s"],
            ALL_CPU.key: cpu_s / (records / 1e6),
            SUM_ROWS.key: records / self._scan(turn, "sum")["wall_s"],
        }
        if _source(server) == "headrace":
            figures[VALUE_ROWS.key] = records / self._scan(turn, "sum", columns="value")["wall_s"]
        return figures

    def _scan(self, turn: Turn, query: str, **settings: str) -> dict[str, Any]:
        answer = tell_spark(turn.server, "scan", topic=self._topics[turn.server], query=query, **settings)
        wanted = turn.scaled(self._records) * self._size + PARTITIONS * _FIRST_SIZE
        if query == "sum" and answer["bytes"] != wanted:
            raise BenchFailure(f"{turn.server.peer.name}: {answer['bytes']:,} bytes of values instead of {wanted:,}")
        return answer


class MicroBatches(Workload):
    name = "spark-batches"
    title = f"a streaming query's micro-batches of a row from each of 4 partitions: median of {_TRIGGERS} triggers"
    metrics = (NOOP_MS, TOPIC_MS)
    plotted = metrics

    def __init__(self, *, peers: Sequence[str]) -> None:
        self.peers = peers
        self._topics: dict[Server, str] = {}

    def prepare(self, turn: Turn) -> None:
        topic = self._topics[turn.server] = turn.server.create_topic(PARTITIONS)
        _fill(turn, topic, _TRIGGERS * PARTITIONS, 100, "none")

    def measure(self, turn: Turn) -> dict[str, float]:
        server = turn.server
        figures = {NOOP_MS.key: self._trigger_ms(server, None)}
        if _source(server) != "rate-micro-batch":
            target = server.create_topic(PARTITIONS)
            figures[TOPIC_MS.key] = self._trigger_ms(server, target)
            server.delete_topic(target)
        return figures

    def _trigger_ms(self, server: Server, target: str | None) -> float:
        answer = tell_spark(server, "batches", topic=self._topics[server], triggers=_TRIGGERS, target=target)
        milliseconds: float = answer["trigger_ms"]
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

    def prepare(self, turn: Turn) -> None:
        topic = self._topics[turn.server] = turn.server.create_topic(PARTITIONS)
        _fill(turn, topic, turn.scaled(self._records), self._size, "none")

    def measure(self, turn: Turn) -> dict[str, float]:
        os.sync()
        server, records = turn.server, turn.scaled(self._records)
        before = server.process.cpu_seconds()
        answer = tell_spark(server, "archive", topic=self._topics[server])
        cpu_s = server.process.cpu_seconds() - before
        if answer["records"] != records + PARTITIONS:
            raise BenchFailure(f"{answer['records']:,} records were archived instead of {records + PARTITIONS:,}")
        size = records * (self._size + _KEY_SIZE)
        return {
            ARCHIVE_MB.key: size / answer["wall_s"] / 1e6,
            "file_mb": answer["file_bytes"] / 1e6,
            "cpu_s_per_gb": cpu_s / (size / 1e9),
        }


def _fill(turn: Turn, topic: str, records: int, size: int, compression: str) -> None:
    settings = {"keys": str(_KEYS), "text": "1", "compression.codec": compression}
    turn.start_load("produce", topic, records, size, **settings).result()


def _source(server: Server) -> str:
    assert isinstance(server.peer, Spark)
    return server.peer.source
