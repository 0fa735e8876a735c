"""The workloads by name, in the order of a run: adjacent ones use the same peers, so that servers stay warm."""

from __future__ import annotations

from bench.workloads.backlog import Backlog
from bench.workloads.compaction import Compaction
from bench.workloads.consume import Consume
from bench.workloads.delayed import Delayed
from bench.workloads.latency import Latency
from bench.workloads.memory import Memory
from bench.workloads.produce import Produce
from bench.workloads.queue import Queue
from bench.workloads.rest import RestPublish, RestPull, RestStream
from bench.workloads.scaling import Connections, Partitions
from bench.workloads.spark import ArchiveWrite, MicroBatches, Scan
from bench.workloads.startup import StartAfterKill, StartFresh
from bench.workloads.workload import Workload

_SMALL_BATCHES = {"batch.size": "16384"}
# By default librdkafka delays a record by 5 ms, which hides the server; so latency is also measured without it.
_NO_LINGER = {"linger.ms": "0"}
_FLUSHING = ("headrace", "kafka-fsync")
_CACHING = ("headrace-cache", "kafka")
# Three brokers with a replica each, and a single broker with one replica: the cost of replication.
_REPLICATED = ("headrace-3", "headrace", "kafka-3-fsync", "kafka-3")
_QUEUES = (
    *("headrace", "headrace-prefetch", "headrace-gather"),
    *("kafka-fsync", "redis-fsync", "nats-fsync", "rabbitmq", "kafka", "redis", "nats"),
)
_REST = ("headrace-rest", "uvicorn-echo", "rabbitmq-http", "nats-fsync", "nats")
_SCANS = ("headrace-spark", "parquet-spark", "kafka-spark")


def all_workloads() -> dict[str, Workload]:
    stream = ("headrace", "kafka-fsync", "kafka")
    workloads: list[Workload] = [
        Produce("produce-1k", records=2_000_000, size=1024, settings={}, peers=stream),
        Produce("produce-100", records=10_000_000, size=100, settings={}, peers=stream),
        Produce("produce-1k-16k", records=200_000, size=1024, settings=_SMALL_BATCHES, peers=stream),
        Produce("produce-100-16k", records=1_000_000, size=100, settings=_SMALL_BATCHES, peers=stream),
        Consume("consume-1k", records=2_000_000, size=1024, peers=stream),
        Consume("consume-100", records=10_000_000, size=100, peers=stream),
        Latency("latency-fsync", seconds=20, settings=_NO_LINGER, peers=_FLUSHING),
        Latency("latency-fsync-linger", seconds=20, settings={}, peers=_FLUSHING),
        Connections(peers=_FLUSHING),
        Latency("latency-cache", seconds=20, settings=_NO_LINGER, peers=_CACHING),
        Latency("latency-cache-linger", seconds=20, settings={}, peers=_CACHING),
        Memory(records=5_000_000, size=100, peers=_FLUSHING),
        Compaction(records=4_000_000, size=500, keys=1_000_000, seconds=20, peers=("headrace",)),
        StartFresh(peers=_FLUSHING),
        StartAfterKill(peers=_FLUSHING),
        Partitions(peers=_FLUSHING),
        Produce("replicas-1k", records=1_000_000, size=1024, settings={}, peers=_REPLICATED),
        Produce("replicas-100", records=5_000_000, size=100, settings={}, peers=_REPLICATED),
        # Kafka processes the next request of a connection after it has responded to the last one, which with replicas
        # includes a round trip to the followers and their disks: at higher rates its latency is that of the queue.
        Latency("replicas-latency", seconds=60, rate=100, settings=_NO_LINGER, peers=_REPLICATED),
        *(Queue(batch=batch, consumers=count, peers=_QUEUES) for count in (1, 16) for batch in (1, 10, 100)),
        Delayed(messages=1_000_000, probes=4000, peers=("headrace",)),
        Backlog(messages=10_000_000, peers=("headrace",)),
        RestPublish(batch=1, connections=32, peers=_REST),
        RestPublish(batch=100, connections=32, peers=("headrace-rest", "uvicorn-echo", "nats-fsync", "nats")),
        RestPull(batch=1, clients=16, peers=_REST),
        RestPull(batch=100, clients=16, peers=("headrace-rest", "nats")),
        RestStream(streams=20, peers=("headrace-rest",)),
        # Ten gigabytes for each of three peers would exceed the page cache and measure the disk. Compressed topics have
        # fewer records, so that all scans take 15 minutes.
        _scan("spark-scan-100", 10_000_000, 100, "none"),
        _scan("spark-scan-100-lz4", 4_000_000, 100, "lz4"),
        _scan("spark-scan-100-zstd", 4_000_000, 100, "zstd"),
        _scan("spark-scan-1k", 2_000_000, 1024, "none"),
        _scan("spark-scan-1k-lz4", 1_000_000, 1024, "lz4"),
        _scan("spark-scan-1k-zstd", 1_000_000, 1024, "zstd"),
        MicroBatches(peers=("headrace-spark", "rate-spark", "kafka-spark")),
        ArchiveWrite(records=1_000_000, size=1024, peers=("headrace-spark",)),
    ]
    return {workload.name: workload for workload in workloads}


def _scan(name: str, records: int, size: int, compression: str) -> Scan:
    return Scan(name, records=records, size=size, compression=compression, peers=_SCANS)
