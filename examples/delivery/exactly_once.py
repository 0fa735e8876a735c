"""Exactly once: commit the results and the offsets together, in one transaction.

python exactly_once.py [ADDRESS [SOURCE [TARGET [WORKER [SECONDS]]]]]

It ends after SECONDS without a record; `inf` means never.
"""

import sys
import time

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition


def main(
    address: str = "127.0.0.1:9092",
    source: str = "orders",
    target: str = "orders-upper",
    worker: str = "worker-1",
    seconds: str = "10",
) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "exactly-once",
            "group.instance.id": worker,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,  # the transaction commits the offsets
            "isolation.level": "read_committed",
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": worker,  # the same at every start, unique among workers
            "transaction.timeout.ms": 10_000,
            "metadata.recovery.strategy": "none",  # otherwise a restart of the only broker can block librdkafka 2.16
        }
    )
    producer.init_transactions()  # fences an earlier worker with this id and aborts its open transaction
    messages: list[Message] = []
    consumer.subscribe([source], on_revoke=lambda *_: messages.clear())
    busy_at = time.monotonic()
    while time.monotonic() - busy_at < float(seconds):
        message = consumer.poll(0.2)
        if message is not None:
            busy_at = time.monotonic()
            if error := message.error():
                raise KafkaException(error)
            messages.append(message)
        if messages and (message is None or len(messages) >= 100) and process(messages, consumer, producer, target):
            messages.clear()
    consumer.close()


def process(messages: list[Message], consumer: Consumer, producer: Producer, target: str) -> bool:
    """Do the work in one transaction. Return False if it was aborted and must be repeated."""
    ends = {(message.topic(), message.partition()): (message.offset() or 0) + 1 for message in messages}
    try:
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, (message.value() or b"").upper(), key=message.key())
        producer.send_offsets_to_transaction(
            [TopicPartition(topic or "", partition or 0, end) for (topic, partition), end in ends.items()],
            consumer.consumer_group_metadata(),  # fails if the group has reassigned our partitions
        )
        producer.commit_transaction()
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise  # fenced, or worse: exit; the next start finds out what was committed
        producer.abort_transaction()
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
