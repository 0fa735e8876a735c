"""Publish with confirms, then read everything: the one load that queues and streams can both be given.

Redis, NATS and RabbitMQ lease and settle each message; Headrace and Kafka are read as streams, which settle
nothing per message. Read the second column with that in mind.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from bench.figures import Metric
from bench.load import start_queueload
from bench.workloads.workload import CPU_S_PER_M, PARTITIONS, PEAK_RSS_MB, Turn, Workload

_STREAM_FACTOR = 40


class Queue(Workload):
    name = "queue-100"
    metrics = (
        Metric("publish_per_s", "published/s", "higher", 0),
        Metric("drain_per_s", "read/s", "higher", 0),
        CPU_S_PER_M,
        PEAK_RSS_MB,
    )
    plotted = metrics[:3]

    def __init__(self, *, records: int, size: int, batch: int, peers: Sequence[str]) -> None:
        self.title = f"publish with confirms, then read all, {size} B (queues settle {batch} at a time)"
        self.peers = peers
        self._records = records
        self._size = size
        self._batch = batch

    def measure(self, turn: Turn) -> dict[str, float]:
        # A stream would have passed before the clock is steady, so it is given more.
        streams = turn.server.peer.protocol == "kafka"
        records = turn.scaled(self._records * (_STREAM_FACTOR if streams else 1))
        process = turn.server.process
        os.sync()
        process.forget_peak()
        before = process.cpu_seconds()
        publish_s, drain_s = self._seconds(turn, records)
        return {
            "publish_per_s": records / publish_s,
            "drain_per_s": records / drain_s,
            CPU_S_PER_M.key: (process.cpu_seconds() - before) / (records / 1e6),
            PEAK_RSS_MB.key: process.peak_rss_bytes() / 1e6,
        }

    def _seconds(self, turn: Turn, records: int) -> tuple[float, float]:
        server = turn.server
        if server.peer.protocol != "kafka":
            load = start_queueload(server.peer.protocol, server.address, records, self._size, self._batch)
            answer = load.result()
            return answer["publish_s"], answer["drain_s"]
        topic = server.create_topic(PARTITIONS)
        loads = [turn.start_load(mode, topic, records, self._size).result() for mode in ("produce", "consume")]
        server.delete_topic(topic)
        return loads[0]["wall_s"], loads[1]["wall_s"]
