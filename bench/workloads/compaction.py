"""The cost of compaction for concurrent producers: ack latency at 1000 records/s with and without compaction.

A topic with one partition is filled with records of a known number of keys, so that one long pass compacts all of it.
The second measurement begins when the pass begins; `covered` is 1 if the pass ended after the measurement.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.failure import BenchFailure
from bench.figures import Metric
from bench.processes import process_tree
from bench.workloads.workload import PARTITIONS, PEAK_RSS_MB, Trial, Workload, measure_cost

_RATE = 1000
_SIZE = 100
_TOPIC = "bench-compacted"
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(64 << 20), "min.cleanable.dirty.ratio": "0.1"}
_BEGIN_SECONDS_MAX = 60
_PASS_SECONDS_MAX = 1200
_POLL_SECONDS = 0.05


class Compaction(Workload):
    name = "compaction"
    fresh = True
    metrics = (
        Metric("ack_p99_ms", "ack p99 ms without", "lower", 3),
        Metric("ack_p99_busy_ms", "ack p99 ms with a pass", "lower", 3),
        Metric("p99_ratio", "with / without", "lower", 2),
        Metric("covered", "covered (1 = yes)", "higher", 0),
        Metric("pass_s", "pass s", "lower", 1),
        Metric("pass_records_per_s", "records/s of the pass", "higher", 0),
        PEAK_RSS_MB,
    )
    plotted = metrics[:3]

    def __init__(self, *, records: int, size: int, keys: int, seconds: int, peers: Sequence[str]) -> None:
        self.title = f"acknowledgements at {_RATE}/s beside a pass over {records:,} records of {keys:,} keys, {size} B"
        self.peers = peers
        self._records = records
        self._size = size
        self._keys = keys
        self._seconds = seconds

    def prepare(self, trial: Trial) -> None:
        trial.server.wait_ready()

    def measure(self, trial: Trial) -> dict[str, float]:
        quiet = self._latency(trial)
        self._fill(trial)
        began = self._wait_for_pass(trial)
        trial.server.process.reset_peak_rss()
        busy = self._latency(trial)
        peak_rss_bytes = trial.server.process.peak_rss_bytes()
        covered = _cpu_of_worker(trial) > 0
        pass_s = self._wait_for_end(trial) - began
        return {
            "ack_p99_ms": quiet / 1000,
            "ack_p99_busy_ms": busy / 1000,
            "p99_ratio": busy / quiet,
            "covered": covered,
            "pass_s": pass_s,
            "pass_records_per_s": trial.scaled(self._records) / pass_s,
            PEAK_RSS_MB.key: peak_rss_bytes / 1e6,
        }

    def _latency(self, trial: Trial) -> float:
        """Return the 99th percentile in microseconds."""
        topic = trial.server.create_topic(PARTITIONS)
        records = trial.scaled(self._seconds * _RATE)
        settings = {"p.linger.ms": "0", "rate": str(_RATE)}
        cost = measure_cost(trial.server, trial.start_load, "latency", topic, records, _SIZE, **settings)
        trial.server.delete_topic(topic)
        p99: float = cost.load["ack_us"]["p99"]
        return p99

    def _fill(self, trial: Trial) -> None:
        admin = AdminClient({"bootstrap.servers": trial.server.address, "log_level": 0})
        admin.create_topics([NewTopic(_TOPIC, 1, 1, config=_CONFIG)])[_TOPIC].result(60)
        producer = Producer({"bootstrap.servers": trial.server.address, "queue.buffering.max.messages": 1_000_000})
        keys, value = trial.scaled(self._keys), os.urandom(self._size)
        for number in range(trial.scaled(self._records)):
            # The order of keys differs in each round over the keys, as with real updates.
            key = b"%012d" % (number * 7919 % keys)
            while True:
                try:
                    producer.produce(_TOPIC, value, key)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 1000 == 0:
                producer.poll(0)
        if producer.flush(120):
            raise BenchFailure("the topic to be compacted could not be filled")

    def _wait_for_pass(self, trial: Trial) -> float:
        """Wait until the worker process uses CPU time; return the time when it began."""
        deadline = time.monotonic() + _BEGIN_SECONDS_MAX
        while _cpu_of_worker(trial) == 0:
            trial.server.process.check_alive()
            if time.monotonic() > deadline:
                raise BenchFailure(f"compaction did not begin within {_BEGIN_SECONDS_MAX} s")
            time.sleep(_POLL_SECONDS)
        return time.monotonic()

    def _wait_for_end(self, trial: Trial) -> float:
        """Wait until the worker process uses no more CPU time; return the time when it ended."""
        deadline = time.monotonic() + _PASS_SECONDS_MAX
        spent, since = -1, time.monotonic()
        while time.monotonic() - since < 2:
            if time.monotonic() > deadline:
                raise BenchFailure(f"compaction did not end within {_PASS_SECONDS_MAX} s")
            time.sleep(_POLL_SECONDS)
            now_spent = _cpu_of_worker(trial)
            if now_spent != spent:
                spent, since = now_spent, time.monotonic()
        return since


def _cpu_of_worker(trial: Trial) -> int:
    """Return the CPU ticks of the server's child processes; 0 if it has none."""
    ticks = 0
    for pid in process_tree(trial.server.process.pid)[1:]:
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks
