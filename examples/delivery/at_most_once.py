"""At most once: commit the offset before the work. A crash in between loses records but repeats none.

python at_most_once.py [ADDRESS [SOURCE [TARGET [WORKER [SECONDS]]]]]

It ends after SECONDS without a record; `inf` means never.
"""

import sys
import time

from confluent_kafka import Consumer, KafkaException, Message, Producer


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
            "group.id": "at-most-once",
            "group.instance.id": worker,  # after a restart, the worker gets its partitions back at once
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    producer = Producer(
        {"bootstrap.servers": address, "acks": 0}
    )  # no acknowledgements, so no retries and no duplicates
    messages: list[Message] = []
    # A worker that takes over a partition reads it again from the committed offset.
    consumer.subscribe([source], on_revoke=lambda *_: messages.clear())
    busy_at = time.monotonic()
    while time.monotonic() - busy_at < float(seconds):
        message = consumer.poll(0.2)
        if message is not None:
            busy_at = time.monotonic()
            if error := message.error():
                raise KafkaException(error)
            messages.append(message)
        if messages and (message is None or len(messages) >= 100):
            consumer.commit(asynchronous=False)  # from here on, the messages count as processed
            for one in messages:
                producer.produce(target, (one.value() or b"").upper(), key=one.key())
            producer.flush()
            messages.clear()
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
