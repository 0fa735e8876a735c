"""A producer and a committing group reader that continue while the broker is killed.

Both run in threads of this process, with librdkafka. Acknowledgements are added to the history when the delivery
report or the commit response arrives.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from types import TracebackType

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from tests.integration.history import History
from tests.integration.process import PATIENCE_SECONDS, wait_until

IN_FLIGHT_MAX = 2000


class Load:
    """Writes increasing numbers to every partition of a topic: `with Load(...) as load`; the exit flushes."""

    def __init__(self, address: str, topic: str, partitions: int, history: History) -> None:
        self._topic, self._partitions, self._history = topic, partitions, history
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.max.ms": 200,
                "log_level": 2,
            }
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE_SECONDS)
        left = self._producer.flush(PATIENCE_SECONDS)
        assert error is not None or left == 0, f"{left} records were neither acknowledged nor refused"

    def wait_acknowledged(self, more: int) -> None:
        """Wait until the broker has acknowledged this number of further records."""
        goal = self._history.acknowledged_count() + more
        wait_until(lambda: self._history.acknowledged_count() >= goal, f"{more} more records are acknowledged")

    def _run(self) -> None:
        value = 0
        while not self._stopped.is_set():
            if len(self._producer) >= IN_FLIGHT_MAX:
                self._producer.poll(0.01)
                continue
            for partition in range(self._partitions):
                self._history.sent[partition].add(value)
                self._producer.produce(
                    self._topic, b"%d" % value + b"." * 90, partition=partition, on_delivery=self._on_delivery
                )
            value += 1
            self._producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        if error is None:
            assert offset is not None
            self._history.acknowledged[partition][value_of(message)] = offset
        else:
            self._history.refused[partition].add(value_of(message))


class CommittingReader:
    """A group member that commits what it has read; `committed` are the successfully committed offsets."""

    def __init__(self, address: str, topic: str, group: str) -> None:
        self.committed: dict[int, int] = defaultdict(int)
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "log_level": 2,
            }
        )
        self._consumer.subscribe([topic])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> CommittingReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE_SECONDS)
        self._consumer.close()

    def wait_committed(self) -> None:
        """Wait until at least one commit has succeeded."""
        wait_until(lambda: bool(self.committed), "a commit is answered")

    def _run(self) -> None:
        while not self._stopped.is_set():
            messages = [message for message in self._consumer.consume(500, timeout=0.2) if message.error() is None]
            if not messages:
                continue
            try:
                answers = self._consumer.commit(asynchronous=False) or []
            except KafkaException:
                continue  # the broker is down or the group rebalances; the next commit says more
            for response in answers:
                if response.error is None and response.offset >= 0:  # below 0: nothing read there yet
                    assert response.offset >= self.committed[response.partition], "a committed offset went back"
                    self.committed[response.partition] = response.offset


def read_everything(address: str, topic: str, partitions: int, history: History) -> None:
    """Read the topic from its start to its current end."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reads everything", "enable.auto.commit": False})
    starts = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
    ends = {
        one.partition: consumer.get_watermark_offsets(TopicPartition(topic, one.partition), PATIENCE_SECONDS)[1]
        for one in starts
    }
    consumer.assign(starts)
    position = dict.fromkeys(ends, 0)

    def at_the_end() -> bool:
        for message in consumer.consume(1000, timeout=0.2):
            error, partition, offset = message.error(), message.partition(), message.offset()
            assert error is None, error
            assert partition is not None
            assert offset is not None
            history.read[partition].append((offset, value_of(message)))
            position[partition] = offset + 1
        return all(position[partition] >= end for partition, end in ends.items())

    wait_until(at_the_end, f"{topic} is read to its end", 2 * PATIENCE_SECONDS)
    consumer.close()


def value_of(message: Message) -> int:
    content = message.value()
    assert content is not None
    return int(content.rstrip(b"."))
