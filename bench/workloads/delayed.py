"""Many messages that are due much later: what they cost in memory and at a restart, and how punctual the others are.

Messages are added to the topic's companion with the time of their delivery as a header. Punctuality is that of some
messages which become due while all the others wait: from the time at which a message is due until a consumer has it.
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
from bench.workloads.workload import PARTITIONS, Turn, Workload

LATE_P99_MS = Metric("late_p99_ms", "late p99 ms", "lower", 1)
RSS_MB = Metric("rss_mb", "RSS MB after restart", "lower", 0)
_DUE_HEADER = "headrace-deliver-at"
_SPREAD_MS = 30 * 24 * 3_600_000
_SOON_MS, _PROBE_STEP_MS = 3_000, 5
_PATIENCE_SECONDS = 120
_HASTE = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 20, "fetch.error.backoff.ms": 10, "log_level": 0}


class Delayed(Workload):
    name = "queue-delayed"
    fresh = True
    metrics = (
        RSS_MB,
        Metric("growth_mb", "of which for them", "lower", 0),
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

    def prepare(self, turn: Turn) -> None:
        turn.server.wait_ready()

    def measure(self, turn: Turn) -> dict[str, float]:
        server = turn.server
        topic = server.create_topic(PARTITIONS)
        self._lateness(turn, topic, 10)  # what is made at the first use is there
        bare_bytes = server.process.rss_bytes()
        began, messages = time.monotonic(), turn.scaled(self._messages)
        _add(server.address, topic, _far(messages, _now_ms() + _SPREAD_MS // 30))
        add_s = time.monotonic() - began
        lateness = self._lateness(turn, topic, turn.scaled(self._probes))
        restart_s = self._restart(turn, topic)
        return {
            RSS_MB.key: server.process.rss_bytes() / 1e6,
            "growth_mb": (server.process.rss_bytes() - bare_bytes) / 1e6,
            RESTART_S.key: restart_s,
            "late_p50_ms": lateness[len(lateness) // 2],
            LATE_P99_MS.key: lateness[len(lateness) * 99 // 100],
            "add_per_s": messages / add_s,
        }

    def _lateness(self, turn: Turn, topic: str, count: int) -> list[float]:
        """Of messages that are due soon, one after the other; ascending."""
        arrivals = _Arrivals(turn.server.address, topic, count)
        start_ms = _now_ms() + _SOON_MS
        _add(turn.server.address, topic, (start_ms + number * _PROBE_STEP_MS for number in range(count)))
        return sorted(arrivals.wait())

    def _restart(self, turn: Turn, topic: str) -> float:
        """From the start of the process until a consumer has a message that became due while nobody ran."""
        server = turn.server
        arrivals = _Arrivals(server.address, topic, 1)
        due_ms = _now_ms() + _SOON_MS
        _add(server.address, topic, [due_ms])
        server.process.kill()
        time.sleep(max(due_ms - _now_ms(), 0) / 1000)
        server.restart()
        arrivals.wait()
        return time.monotonic() - server.process.started_at


class _Arrivals:
    """A consumer that is there from now on, and notes how late messages come."""

    def __init__(self, address: str, topic: str, count: int) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False, **_HASTE}
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
        self._thread.join(_PATIENCE_SECONDS + self._count * _PROBE_STEP_MS / 1000)
        self._consumer.close()
        if len(self._late_ms) != self._count:
            raise BenchFailure(f"{len(self._late_ms)} of {self._count} delayed messages arrived")
        return self._late_ms

    def _receive(self) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while len(self._late_ms) < self._count and time.monotonic() < deadline:
            message = self._consumer.poll(1)
            if message is None:
                continue
            if (error := message.error()) is not None:
                assert error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART, error
                continue
            self._late_ms.append(time.time() * 1000 - int((message.value() or b"").split()[0]))


def _far(count: int, from_ms: int) -> Iterable[int]:
    """Times of delivery in no order, as they come in life."""
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
    if producer.flush(_PATIENCE_SECONDS) or failures:
        raise BenchFailure(f"the delayed messages could not be added: {failures[:1]}")


def _now_ms() -> int:
    return int(time.time() * 1000)
