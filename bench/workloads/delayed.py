"""Many delayed messages: their memory, the time of a restart, and the lateness of messages that become due.

Messages are produced to the topic's `__delayed` topic with their delivery time as a header. Lateness is the time from
the due time of a message until a consumer receives it, while all the others are waiting.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from threading import Thread

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from bench.failure import BenchFailure
from bench.figures import Metric
from bench.workloads.backlog import RESTART_S
from bench.workloads.queue import SIZE
from bench.workloads.workload import PARTITIONS, Trial, Workload

LATE_P99_MS = Metric("late_p99_ms", "late p99 ms", "lower", 1)
RSS_MB = Metric("rss_mb", "RSS MB after restart", "lower", 0)
_DUE_HEADER = "headrace-deliver-at"
_SPREAD_MS = 30 * 24 * 3_600_000
_SOON_MS, _PROBE_STEP_MS = 3_000, 5
_WAIT_SECONDS_MAX = 120
_FAST_RECONNECT = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 20,
    "fetch.error.backoff.ms": 10,
    "log_level": 0,
}


class Delayed(Workload):
    name = "queue-delayed"
    fresh = True
    metrics = (
        RSS_MB,
        Metric("growth_mb", "RSS growth MB", "lower", 0),
        RESTART_S,
        Metric("late_p50_ms", "late p50 ms", "lower", 1),
        LATE_P99_MS,
        Metric("add_per_s", "added/s", "higher", 0),
    )
    plotted = (RSS_MB, RESTART_S, LATE_P99_MS)

    def __init__(self, *, messages: int, probes: int, peers: Sequence[str]) -> None:
        self.title = f"{messages:,} messages delayed by up to 30 days"
        self.peers = peers
        self._messages = messages
        self._probes = probes

    def prepare(self, trial: Trial) -> None:
        trial.server.wait_ready()

    def measure(self, trial: Trial) -> dict[str, float]:
        server = trial.server
        topic = server.create_topic(PARTITIONS)
        self._lateness(trial, topic, 10)  # include structures that are created on first use
        bare_bytes = server.process.rss_bytes()
        began, messages = time.monotonic(), trial.scaled(self._messages)
        _add(server.address, topic, _far(messages, _now_ms() + _SPREAD_MS // 30))
        add_s = time.monotonic() - began
        lateness = self._lateness(trial, topic, trial.scaled(self._probes))
        restart_s = self._restart(trial, topic)
        return {
            RSS_MB.key: server.process.rss_bytes() / 1e6,
            "growth_mb": (server.process.rss_bytes() - bare_bytes) / 1e6,
            RESTART_S.key: restart_s,
            "late_p50_ms": lateness[len(lateness) // 2],
            LATE_P99_MS.key: lateness[len(lateness) * 99 // 100],
            "add_per_s": messages / add_s,
        }

    def _lateness(self, trial: Trial, topic: str, count: int) -> list[float]:
        """Return the sorted lateness of messages that become due soon, one after the other."""
        arrivals = _Arrivals(trial.server.address, topic, count)
        start_ms = _now_ms() + _SOON_MS
        _add(trial.server.address, topic, (start_ms + number * _PROBE_STEP_MS for number in range(count)))
        return sorted(arrivals.wait())

    def _restart(self, trial: Trial, topic: str) -> float:
        """Measure from the start of the process until a consumer has a message that became due while it was down."""
        server = trial.server
        arrivals = _Arrivals(server.address, topic, 1)
        due_ms = _now_ms() + _SOON_MS
        _add(server.address, topic, [due_ms])
        server.process.kill()
        time.sleep(max(due_ms - _now_ms(), 0) / 1000)
        server.restart()
        arrivals.wait()
        return time.monotonic() - server.process.started_at


class _Arrivals:
    """A consumer that starts at the end of the topic and measures how late messages arrive."""

    def __init__(self, address: str, topic: str, count: int) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False, **_FAST_RECONNECT}
        )
        ends = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        for end in ends:
            end.offset = self._consumer.get_watermark_offsets(end, timeout=30)[1]
        self._consumer.assign(ends)
        self._count = count
        self._late_ms: list[float] = []
        self._thread = Thread(target=self._receive, daemon=True)
        self._thread.start()

    def wait(self) -> list[float]:
        self._thread.join(_WAIT_SECONDS_MAX + self._count * _PROBE_STEP_MS / 1000)
        self._consumer.close()
        if len(self._late_ms) != self._count:
            raise BenchFailure(f"{len(self._late_ms)} of {self._count} delayed messages arrived")
        return self._late_ms

    def _receive(self) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS_MAX
        while len(self._late_ms) < self._count and time.monotonic() < deadline:
            message = self._consumer.poll(1)
            if message is None:
                continue
            if (error := message.error()) is not None:
                assert error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART, error
                continue
            self._late_ms.append(time.time() * 1000 - int((message.value() or b"").split()[0]))


def _far(count: int, from_ms: int) -> Iterable[int]:
    """Return delivery times in a shuffled order."""
    return (from_ms + (number * 7919 % count) * _SPREAD_MS // count for number in range(count))


def _add(address: str, topic: str, dues_ms: Iterable[int]) -> None:
    failures: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": address, "queue.buffering.max.messages": 1_000_000, "linger.ms": 5})
    for due_ms in dues_ms:
        value = b"%d %s" % (due_ms, b"x" * SIZE)
        while True:
            try:
                producer.produce(
                    f"__delayed.{topic}",
                    value,
                    headers=[(_DUE_HEADER, str(due_ms))],
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(_WAIT_SECONDS_MAX) or failures:
        raise BenchFailure(f"the delayed messages could not be added: {failures[:1]}")


def _now_ms() -> int:
    return int(time.time() * 1000)
