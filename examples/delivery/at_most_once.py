"""At most once: the offset is committed before the work. A crash in between loses records and repeats none.

python at_most_once.py ADDRESS SOURCE TARGET WORKER
"""

import sys

from confluent_kafka import Consumer, KafkaException, Message, Producer


def main(address: str, source: str, target: str, worker: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "at-most-once",
            "group.instance.id": worker,  # started again, it has its partitions back at once
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    producer = Producer(
        {"bootstrap.servers": address, "acks": 0}
    )  # nobody waits for an answer, so nothing is sent twice
    messages: list[Message] = []
    # Partitions that another worker takes over are read there again, from what was committed.
    consumer.subscribe([source], on_revoke=lambda *_: messages.clear())
    while True:
        message = consumer.poll(0.2)
        if message is not None:
            if error := message.error():
                raise KafkaException(error)
            messages.append(message)
        if messages and (message is None or len(messages) >= 100):
            consumer.commit(asynchronous=False)  # from here on they count as done
            for one in messages:
                producer.produce(target, (one.value() or b"").upper(), key=one.key())
            producer.flush()
            messages.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
