"""A member of a share group as a program, until killed: `python -m tests.compat.share_member ADDRESS TOPIC WAY`.

The group has the topic's name. Every message is printed as `taken OFFSET DELIVERY VALUE` when it is received, and as
`acked OFFSET` when its acknowledgement is confirmed. WAY is `works`, or `holds`: never acknowledge.
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import ShareConsumer

RECORDS_MAX = 20
"""How many messages a member takes at most at a time."""


def main(address: str, topic: str, way: str) -> None:
    consumer = ShareConsumer(
        {
            "bootstrap.servers": address,
            "group.id": topic,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": RECORDS_MAX,
        }
    )
    consumer.subscribe([topic])
    while True:
        messages = [message for message in consumer.poll(0.5) if message.error() is None]
        for message in messages:
            value = (message.value() or b"").decode()
            report(f"taken {message.offset()} {message.delivery_count()} {value}")
        while messages and way == "holds":
            time.sleep(1)
        for message in messages:
            consumer.acknowledge(message)
        if messages and not any((consumer.commit_sync(30) or {}).values()):
            for message in messages:
                report(f"acked {message.offset()}")


def report(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
