"""Copy numbers from one topic to another exactly once, until killed.

python -m tests.compat.copier CLIENT ADDRESS SOURCE TARGET NAME [PARTITION ...]

NAME is the transactional id: a copier fences the previous one of the same name. The confluent copiers share the
partitions as a group with the name of the source, and the group fences their offsets. aiokafka cannot send the member
with its offsets, so its copiers get fixed partitions.

A transaction sends its offsets first and then the records one by one, so that a kill usually interrupts it halfway.
Every fifth transaction is written twice: first with marked values, which are flushed and then aborted.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from tests.compat.time_limit import CALL_SECONDS, time_limit

ABORTED = b"aborted "
"""The prefix of aborted records, which no read_committed reader may receive."""
TARGET_PARTITIONS = 4
TRANSACTION_RECORDS = 20
SESSION_TIMEOUT_MS = 2000
TRANSACTION_SECONDS = 90.0
"""The time limit of one attempt to copy. It is longer than the coordinator lets a transaction take."""


def main(client: str, address: str, source: str, target: str, name: str, *partitions: str) -> None:
    if client == "confluent":
        ConfluentCopier(address, source, target, name).run()
    else:
        asyncio.run(copy_by_aiokafka(address, source, target, name, [int(partition) for partition in partitions]))


def target_partition(number: bytes) -> int:
    """Choose the target partition, usually another one than the source's, so that transactions have several ones."""
    return int(number) // 7 % TARGET_PARTITIONS


class ConfluentCopier:
    def __init__(self, address: str, source: str, target: str, name: str) -> None:
        common_settings = {"bootstrap.servers": address, "reconnect.backoff.max.ms": 200, "log_level": 2}
        self._producer = Producer(
            {
                **common_settings,
                "transactional.id": name,
                "linger.ms": 0,
                "retry.backoff.max.ms": 200,
                # Otherwise librdkafka 2.16 waits forever to send offsets when its only broker has restarted (its
                # issue 5511): it waits for a connection that it has given up. The same happens with Kafka.
                "metadata.recovery.strategy": "none",
            }
        )
        self._producer.init_transactions()
        self._consumer = Consumer(
            {
                **common_settings,
                "group.id": source,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 200,
                "fetch.wait.max.ms": 50,
            }
        )
        self._target = target
        self._messages: list[Message] = []
        self._consumer.subscribe([source], on_revoke=lambda *_: self._messages.clear())
        self._transactions = itertools.count(1)

    def run(self) -> None:
        while True:
            with time_limit(CALL_SECONDS):
                message = self._consumer.poll(0.05)
            if message is not None:
                if error := message.error():
                    raise KafkaException(error)
                self._messages.append(message)
            full = len(self._messages) >= TRANSACTION_RECORDS
            if self._messages and (message is None or full) and self._transact_in_time():
                self._messages.clear()

    def _transact_in_time(self) -> bool:
        with time_limit(TRANSACTION_SECONDS):
            return self._transact()

    def _transact(self) -> bool:
        """Return whether the messages were copied; otherwise the transaction was aborted and must be repeated."""
        try:
            if next(self._transactions) % 5 == 0:
                self._producer.begin_transaction()
                self._write(ABORTED)
                self._producer.abort_transaction()
            self._producer.begin_transaction()
            self._write(b"")
            self._producer.commit_transaction()
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._producer.abort_transaction()
            return False
        return True

    def _write(self, mark: bytes) -> None:
        ends: dict[tuple[str, int], int] = {}
        for message in self._messages:
            ends[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1
        positions = [TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()]
        self._producer.send_offsets_to_transaction(positions, self._consumer.consumer_group_metadata())
        for message in self._messages:
            number = message.value() or b""
            self._producer.produce(self._target, mark + number, partition=target_partition(number))
            self._producer.flush()


async def copy_by_aiokafka(address: str, source: str, target: str, name: str, partitions: list[int]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=address, transactional_id=name)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address,
        group_id=source,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        fetch_max_wait_ms=50,
    )

    async def write(batches: dict[AioPartition, list[bytes]], ends: dict[AioPartition, int], mark: bytes) -> None:
        await producer.send_offsets_to_transaction(dict(ends), source)
        for number in [number for batch in batches.values() for number in batch]:
            await producer.send_and_wait(target, mark + number, partition=target_partition(number))

    async with producer, consumer:
        consumer.assign([AioPartition(source, partition) for partition in partitions])
        for number in itertools.count(1):
            with time_limit(CALL_SECONDS):
                records = await consumer.getmany(timeout_ms=50, max_records=TRANSACTION_RECORDS)
            batches = {place: [record.value for record in batch] for place, batch in records.items()}
            ends = {place: batch[-1].offset + 1 for place, batch in records.items()}
            if not batches:
                continue
            if number % 5 == 0:
                await producer.begin_transaction()
                await write(batches, ends, ABORTED)
                await producer.abort_transaction()
            async with producer.transaction():
                await write(batches, ends, b"")


if __name__ == "__main__":
    main(*sys.argv[1:])
