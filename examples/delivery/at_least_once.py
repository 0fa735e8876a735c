"""At least once: commit the offset after the work. A crash in between repeats records but loses none.

python at_least_once.py [ADDRESS [SOURCE [TARGET [WORKER [SECONDS]]]]]

It ends after SECONDS without a record; `inf` means never.
"""

import sys
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer


def must_arrive(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)  # ends the program before the commit; the next start retries


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
            "group.id": "at-least-once",
            "group.instance.id": worker,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})  # acks=all, no duplicates
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
        if messages and (message is None or len(messages) >= 100):
            for one in messages:
                producer.produce(target, (one.value() or b"").upper(), key=one.key(), on_delivery=must_arrive)
            producer.flush()
            consumer.commit(asynchronous=False)  # the results are on disk: the messages count as processed
            messages.clear()
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
