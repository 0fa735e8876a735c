"""Transactional writers of three client libraries with one interface, and their readers.

`python -m tests.compat.transactional CLIENT ADDRESS TOPIC TRANSACTIONAL_ID` is a writer that writes a record in a
transaction, prints `left open`, and leaves the transaction open until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import ConsumerGroupMetadata, KafkaConsumer, KafkaProducer, OffsetAndMetadata
from kafka import TopicPartition as PythonPartition
from kafka.errors import ProducerFencedError
from tests.integration.process import PATIENCE_SECONDS, wait_until

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
TIMEOUT_MS = 60_000


class Writer(Protocol):
    """A transactional producer. Every method returns after the broker's response, and raises its error."""

    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, value: bytes) -> None: ...
    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class View(NamedTuple):
    """What a reader sees of a topic: the end of each partition, and the values before it."""

    ends: list[int]
    values: list[bytes]


def is_fenced(error: BaseException) -> bool:
    """Return whether the error means that another producer has taken over the transactional id."""
    if isinstance(error, KafkaException):
        return bool(error.args[0].code() in {KafkaError._FENCED, KafkaError.PRODUCER_FENCED})
    return isinstance(error, ProducerFenced | ProducerFencedError)


class ConfluentWriter:
    def __init__(self, address: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._address = address
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 0,
                "log_level": 2,
            }
        )
        self._producer.init_transactions(PATIENCE_SECONDS)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        errors: list[KafkaError | None] = []
        self._producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: errors.append(error))
        assert self._producer.flush(PATIENCE_SECONDS) == 0
        if errors[0] is not None:
            raise KafkaException(errors[0])

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        with closing(Consumer({"bootstrap.servers": self._address, "group.id": group})) as consumer:
            metadata = consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction([TopicPartition(topic, partition, offset)], metadata)

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE_SECONDS)

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE_SECONDS)

    def close(self) -> None:
        with suppress(KafkaException):  # it raises the fencing error once more
            self._producer.close()


class AiokafkaWriter:
    """Runs its event loop only during a call, which suffices for a producer."""

    def __init__(self, address: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._runner = asyncio.Runner()
        self._producer: Any = None

        async def start() -> None:
            self._producer = AIOKafkaProducer(
                bootstrap_servers=address, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
            )
            await self._producer.start()

        self._runner.run(start())

    def begin(self) -> None:
        self._runner.run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._runner.run(self._producer.send_and_wait(topic, value, partition=partition))

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        offsets = {AioPartition(topic, partition): offset}
        self._runner.run(self._producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        self._runner.run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._runner.run(self._producer.abort_transaction())

    def close(self) -> None:
        self._runner.run(self._producer.stop())
        self._runner.close()


class KafkaPythonWriter:
    def __init__(self, address: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=address, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.send(topic, value, partition=partition).get(PATIENCE_SECONDS)

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        offsets = {PythonPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group))

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)


WRITERS: dict[str, Callable[..., Writer]] = {
    "confluent": ConfluentWriter,
    "aiokafka": AiokafkaWriter,
    "kafka-python": KafkaPythonWriter,
}


@contextmanager
def writer_of(client: str, address: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> Iterator[Writer]:
    with closing(WRITERS[client](address, transactional_id, timeout_ms)) as writer:
        yield writer


def confluent_view(address: str, topic: str, partitions: int, isolation: str) -> View:
    config = {"bootstrap.servers": address, "group.id": "views", "isolation.level": isolation, "fetch.wait.max.ms": 20}
    places = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
    with closing(Consumer({**config, "enable.auto.commit": False, "enable.partition.eof": True})) as consumer:
        ends = [consumer.get_watermark_offsets(place, PATIENCE_SECONDS)[1] for place in places]
        consumer.assign(places)
        values: list[list[bytes]] = [[] for _ in places]
        unfinished = set(range(partitions))
        while unfinished:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, f"{unfinished} of {topic} have no end"
            partition, error = message.partition() or 0, message.error()
            if error is None:
                values[partition].append(message.value() or b"")
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unfinished.discard(partition)
    return View(ends, [value for those in values for value in those])


def aiokafka_view(address: str, topic: str, partitions: int, isolation: str) -> View:
    places = [AioPartition(topic, partition) for partition in range(partitions)]

    async def read_view() -> View:
        values: list[list[bytes]] = [[] for _ in places]
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            AIOKafkaConsumer(bootstrap_servers=address, isolation_level=isolation) as consumer,
        ):
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            ends = await consumer.end_offsets(places)
            while [place for place in places if await consumer.position(place) < ends[place]]:
                for place, records in (await consumer.getmany(timeout_ms=100)).items():
                    values[place.partition] += [record.value for record in records]
        return View([ends[place] for place in places], [value for those in values for value in those])

    return asyncio.run(read_view())


def kafka_python_view(address: str, topic: str, partitions: int, isolation: str) -> View:
    places = [PythonPartition(topic, partition) for partition in range(partitions)]
    values: list[list[bytes]] = [[] for _ in places]
    with closing(KafkaConsumer(bootstrap_servers=address, isolation_level=isolation)) as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)

        def at_the_end() -> bool:
            for place, records in consumer.poll(timeout_ms=100).items():
                values[place.partition] += [record.value for record in records]
            return all(consumer.position(place) >= ends[place] for place in places)

        wait_until(at_the_end, f"{topic} is read to its end")
    return View([ends[place] for place in places], [value for those in values for value in those])


VIEWS: dict[str, Callable[[str, str, int, str], View]] = {
    "confluent": confluent_view,
    "aiokafka": aiokafka_view,
    "kafka-python": kafka_python_view,
}


def main(client: str, address: str, topic: str, transactional_id: str) -> None:
    writer = WRITERS[client](address, transactional_id)
    writer.begin()
    writer.send(topic, 0, b"left open")
    sys.stdout.write("left open\n")
    sys.stdout.flush()
    sys.stdin.read()  # until it is killed


if __name__ == "__main__":
    main(*sys.argv[1:])
