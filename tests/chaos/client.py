"""The process of one client of the workload, on its own host, until SIGTERM.

    python -m tests.chaos.client ROLE NAME BOOTSTRAP TOPIC PARTITIONS RATE GROUP

The process prints its operations and what it received, one JSON array per line, with the nanoseconds of the monotonic
clock, which all processes of a machine share:

    ["send", began, partition, value]      ["ack", ended, partition, value, offset]      ["refused", at, value, error]
    ["poll", at, partition, [[offset, value], ...]]
    ["commit", began, partition, offset]   ["committed", ended, began, partition]
    ["found", began, ended, partition, offset]
    ["error", at, text]                    ["end", at]

An operation is printed when it begins and again when it succeeds. One that never succeeds may still take effect.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import defaultdict
from contextlib import AbstractContextManager, closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from tests.chaos.names import FEEDER
from tests.compat.time_limit import CALL_SECONDS, time_limit

SHORT_TIMEOUTS = {
    # An isolated host sends no response at all: with the defaults a client waits a minute before it tries another.
    "socket.timeout.ms": 5000,
    "socket.connection.setup.timeout.ms": 2000,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 2000,
    "log_level": 0,
}
IN_FLIGHT_MAX = 2000
PARTITION_COUNT_SECONDS = 3.0
"""How often a writer requests the number of partitions."""
MEMBERSHIP_SECONDS = 12.0
"""The time until a member leaves its group and rejoins, so that there are rebalances without faults, too."""
FLUSH_SECONDS = 120.0

stop_signals: list[int] = []
"""The stop signals that this process received."""


def main(role: str, name: str, bootstrap: str, topic: str, partitions: str, rate: str, group: str) -> None:
    signal.signal(signal.SIGTERM, lambda number, _: stop_signals.append(number))
    if role in ("writer", "growing-writer"):
        Writer(name, bootstrap, topic, int(partitions), float(rate), follows_growth=role != "writer").run()
    elif role == "reader":
        read(bootstrap, topic, int(partitions))
    else:
        Member(bootstrap, topic, group).run()
    emit("end", time.monotonic_ns())
    sys.stdout.flush()


def emit(*what: Any) -> None:
    sys.stdout.write(json.dumps(what, separators=(",", ":")) + "\n")


class Writer:
    """Writes unique values to all partitions in turn, at a fixed rate, as an idempotent producer with acks=all."""

    def __init__(
        self, name: str, bootstrap: str, topic: str, partitions: int, rate: float, *, follows_growth: bool
    ) -> None:
        self._name, self._topic, self._partitions, self._rate = name, topic, partitions, rate
        self._follows_growth = follows_growth
        self._settings = {
            **SHORT_TIMEOUTS,
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "request.timeout.ms": 4000,
            "retry.backoff.max.ms": 500,
        }
        self._producer = Producer(self._settings)
        self._number, self._began = 0, time.monotonic()
        self._partitions_fetched = self._began

    def run(self) -> None:
        while not stop_signals:
            try:
                self._work()
            except KafkaException as error:
                # If the cluster loses nothing, an idempotent producer never gets a fatal error: the run reports it.
                emit("error", time.monotonic_ns(), str(error))
                self._producer = Producer(self._settings)
        left = self._producer.flush(FLUSH_SECONDS)
        if left:
            emit("error", time.monotonic_ns(), f"{left} records were neither acknowledged nor rejected")

    def _work(self) -> None:
        if self._follows_growth and time.monotonic() > self._partitions_fetched + PARTITION_COUNT_SECONDS:
            self._fetch_partition_count()
        due = int((time.monotonic() - self._began) * self._rate)
        if len(self._producer) >= IN_FLIGHT_MAX or self._number >= due:
            # Records that could not be sent in time are skipped, so that no flood follows an outage.
            self._began += max(0.0, (due - self._number) / self._rate - 1.0)
            sys.stdout.flush()
            self._producer.poll(0.005)
        else:
            self._send(self._number)
            self._number += 1
            self._producer.poll(0)

    def _fetch_partition_count(self) -> None:
        try:
            self._partitions = len(self._producer.list_topics(self._topic, timeout=1.0).topics[self._topic].partitions)
        except KafkaException:
            return
        finally:
            self._partitions_fetched = time.monotonic()

    def _send(self, number: int) -> None:
        partition = number % self._partitions
        # The copiers expect bare numbers, and only one writer writes for them.
        value = str(number) if self._name == FEEDER else f"{self._name}-{number}"
        emit("send", time.monotonic_ns(), partition, value)
        self._producer.produce(self._topic, value, partition=partition, on_delivery=self._on_delivery)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        value = (message.value() or b"").decode()
        if error is None:
            offset = message.offset()  # unknown if the broker only confirmed that it already has the record
            emit("ack", time.monotonic_ns(), message.partition(), value, -1 if offset is None else offset)
        else:
            emit("refused", time.monotonic_ns(), value, str(error))


def read(bootstrap: str, topic: str, partitions: int) -> None:
    """Read everything from the start, in order, until stopped."""
    settings = {
        **SHORT_TIMEOUTS,
        "bootstrap.servers": bootstrap,
        "group.id": "none",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 100,
    }
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        while not stop_signals:
            emit_poll(consumer.consume(500, timeout=0.2))
            sys.stdout.flush()


def emit_poll(messages: list[Message]) -> dict[int, int]:
    """Print the received records; return the next offset of each partition."""
    found = defaultdict[int, list[tuple[int, str]]](list)
    now = time.monotonic_ns()
    for message in messages:
        error = message.error()
        if error is not None:
            emit("error", now, f"{error.name()}: {error.str()}")
        else:
            found[message.partition() or 0].append((message.offset() or 0, (message.value() or b"").decode()))
    for partition, records in found.items():
        emit("poll", now, partition, records)
    return {partition: records[-1][0] + 1 for partition, records in found.items()}


class Member:
    """A group member that commits what it has read, and leaves and rejoins regularly."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._topic = topic
        self._settings = {
            **SHORT_TIMEOUTS,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 4000,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 100,
        }

    def run(self) -> None:
        while not stop_signals:
            consumer = Consumer(self._settings)
            consumer.subscribe([self._topic], on_assign=self._fetch_committed)
            leaves = time.monotonic() + MEMBERSHIP_SECONDS
            while not stop_signals and time.monotonic() < leaves:
                with reported_time_limit("poll"):
                    messages = consumer.consume(500, timeout=0.2)
                ends = emit_poll(messages)
                if ends:
                    self._commit(consumer, ends)
                sys.stdout.flush()
            with reported_time_limit("close"):
                consumer.close()

    def _fetch_committed(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        began = time.monotonic_ns()
        try:
            found = consumer.committed(partitions, timeout=5.0)
        except KafkaException as error:
            emit("error", time.monotonic_ns(), str(error))
            return
        for partition in found:
            if partition.error is None:
                emit("found", began, time.monotonic_ns(), partition.partition, max(partition.offset, -1))

    def _commit(self, consumer: Consumer, ends: dict[int, int]) -> None:
        began = time.monotonic_ns()
        for partition, offset in ends.items():
            emit("commit", began, partition, offset)
        positions = [TopicPartition(self._topic, partition, offset) for partition, offset in ends.items()]
        try:
            with reported_time_limit("commit"):
                responses = consumer.commit(offsets=positions, asynchronous=False) or []
        except KafkaException as error:
            emit("error", time.monotonic_ns(), str(error))
            return
        for response in responses:
            if response.error is None:
                emit("committed", time.monotonic_ns(), began, response.partition)


def reported_time_limit(call: str, seconds: float = CALL_SECONDS) -> AbstractContextManager[None]:
    """Like `time_limit`; the output of this client names the call that did not return."""

    def report() -> None:
        emit("error", time.monotonic_ns(), f"a {call} took more than {seconds:.0f} s")
        emit("end", time.monotonic_ns())
        sys.stdout.flush()

    return time_limit(seconds, report)


if __name__ == "__main__":
    main(*sys.argv[1:])
