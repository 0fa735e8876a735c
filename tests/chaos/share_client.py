"""The process of one client of a Kafka share group (KIP-932), on its own host, until SIGTERM.

    python -m tests.chaos.share_client ROLE NAME BOOTSTRAP PARTITIONS RATE

A publisher is an idempotent producer with `acks=all`. Members acquire records with confluent-kafka's `ShareConsumer` in
explicit mode and acknowledge each by its value: most are accepted, poison is rejected, stubborn records are
released until they reach the delivery limit, and some ordinary ones are released at first. A member leaves the group
and joins it again every few seconds; at times it exits with records that it has not acknowledged, as a crash would.

The output has the format of `tests.chaos.queue_client`, so that the rules of queues apply: accept is `ack`, release is
`nack`. A ShareFetch response does not say when the broker acquired the records. `granted` is the earliest moment at
which it can have done so, and a record that is granted after an acknowledgement was confirmed is certainly a second
delivery.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from collections import deque

from confluent_kafka import (
    AcknowledgeType,
    KafkaError,
    KafkaException,
    Message,
    ShareConsumer,
)
from tests.chaos.client import MEMBERSHIP_SECONDS, SHORT_TIMEOUTS, Writer, emit, reported_time_limit, stop_signals
from tests.chaos.names import SHARED
from tests.chaos.queue_client import ACK_HOW, NACK, ORDINARY, PATIENT_ATTEMPTS, POISON, REJECT, STUBBORN, now_ms

GROUP = "sharers"
LOCK_MS = 5000
SOCKET_TIMEOUT_MS = 2000
RESPONSE_AGE_MS_MAX = SOCKET_TIMEOUT_MS + 1500
"""librdkafka drops a response that takes longer than the socket timeout; it looks once a second."""
BUFFERED_POLLS = 5
"""A response waits in the library until a poll takes it, behind at most one response of each other broker."""
RECORDS_MAX = 20
COMMIT_SECONDS = 15.0
CRASHED = 76
"""The exit code of a member that abandoned its records on purpose."""
CRASH_CHANCE = 0.3
HOWS = {ACK_HOW: AcknowledgeType.ACCEPT, NACK: AcknowledgeType.RELEASE, REJECT: AcknowledgeType.REJECT}


def main(role: str, name: str, bootstrap: str, partitions: str, rate: str) -> None:
    signal.signal(signal.SIGTERM, lambda number, _: stop_signals.append(number))
    if role == "publisher":
        Publisher(name, bootstrap, SHARED, int(partitions), float(rate), follows_growth=False).run()
    else:
        Member(name, bootstrap).run()
    emit("end", now_ms())
    sys.stdout.flush()


class Publisher(Writer):
    """The writer of the streams, with values that determine how records are acknowledged."""

    def _send(self, number: int) -> None:
        kind = POISON if number % 20 == 7 else STUBBORN if number % 50 == 11 else ORDINARY
        value = f"{kind} {self._name}-{number}"
        emit("publish", now_ms(), value, None)
        self._producer.produce(self._topic, value, partition=number % self._partitions, on_delivery=self._on_delivery)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            emit("published", now_ms(), (message.value() or b"").decode())


class Member:
    def __init__(self, name: str, bootstrap: str) -> None:
        self._chance = random.Random(f"{name} {os.getpid()}")
        self._numbers = itertools.count(time.time_ns())  # unique across restarts of this member
        self._polls = deque[int](maxlen=BUFFERED_POLLS)
        self._settings = {
            **SHORT_TIMEOUTS,
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": RECORDS_MAX,
            "socket.timeout.ms": SOCKET_TIMEOUT_MS,
            "fetch.wait.max.ms": 200,
        }

    def run(self) -> None:
        while not stop_signals:
            crashes = self._chance.random() < CRASH_CHANCE
            leaves = time.monotonic() + MEMBERSHIP_SECONDS
            self._polls.clear()
            consumer = ShareConsumer(self._settings)
            consumer.subscribe([SHARED])
            while not stop_signals and time.monotonic() < leaves:
                self._work(consumer)
            if crashes and not stop_signals and self._take(consumer):
                sys.stdout.flush()
                os._exit(CRASHED)
            with reported_time_limit("close"):
                consumer.close()

    def _work(self, consumer: ShareConsumer) -> None:
        taken = self._take(consumer)
        for number, message in taken:
            how = self._decide(message)
            emit("settle", number, now_ms(), how, 0 if how == NACK else None)
            consumer.acknowledge(message, HOWS[how])
        sys.stdout.flush()
        if taken:
            self._commit(consumer, taken)
            sys.stdout.flush()

    def _take(self, consumer: ShareConsumer) -> list[tuple[int, Message]]:
        """Poll once; return the received records with their delivery numbers."""
        self._polls.append(now_ms())
        granted = self._polls[0] - RESPONSE_AGE_MS_MAX
        taken = list[tuple[int, Message]]()
        with reported_time_limit("poll"):
            messages = consumer.poll(0.5)
        for message in messages:
            error = message.error()
            if error is not None:
                emit("error", now_ms(), f"{error.name()}: {error.str()}")
                continue
            number, value = next(self._numbers), (message.value() or b"").decode()
            place = f"{message.topic()}:{message.partition()}:{message.offset()}"
            emit("lease", number, value, place, message.delivery_count(), granted, granted + LOCK_MS)
            taken.append((number, message))
        return taken

    def _decide(self, message: Message) -> str:
        kind = (message.value() or b"").decode().split()[0]
        if kind == POISON:
            return REJECT
        if kind == STUBBORN:
            return NACK
        is_released = (message.delivery_count() or 0) <= PATIENT_ATTEMPTS and self._chance.random() < 0.1
        return NACK if is_released else ACK_HOW

    def _commit(self, consumer: ShareConsumer, taken: list[tuple[int, Message]]) -> None:
        """Commit the acknowledgements. An unconfirmed one may have taken effect."""
        try:
            with reported_time_limit("commit"):
                results = consumer.commit_sync(COMMIT_SECONDS) or {}
        except KafkaException as error:
            emit("error", now_ms(), str(error))
            return
        ended = now_ms()
        confirmed = {place.partition for place, failure in results.items() if failure is None}
        for place, failure in results.items():
            if failure is not None:
                emit("error", ended, f"partition {place.partition}: {failure}")
        for number, message in taken:
            if message.partition() in confirmed:
                emit("settled", number, ended)


if __name__ == "__main__":
    main(*sys.argv[1:])
