"""Exactly once with aiokafka: one worker, one transactional id for each partition of the source.

python exactly_once_aiokafka.py [ADDRESS [SOURCE [TARGET [PARTITION [SECONDS]]]]]

It ends after SECONDS without a record; `inf` means never.
"""

import asyncio
import sys
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

GROUP = "exactly-once-aiokafka"


async def main(
    address: str = "127.0.0.1:9092",
    source: str = "orders",
    target: str = "orders-upper",
    partition: str = "0",
    seconds: str = "10",
) -> None:
    partition_id = TopicPartition(source, int(partition))
    producer = AIOKafkaProducer(
        bootstrap_servers=address,
        transactional_id=f"{GROUP}-{source}-{partition}",  # the only fence for aiokafka's offsets
        transaction_timeout_ms=10_000,
    )
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    # The order matters: starting the producer ends the previous worker's transaction. Only then does
    # the consumer read the committed offset.
    async with producer, consumer:
        consumer.assign([partition_id])
        busy_at = time.monotonic()
        while time.monotonic() - busy_at < float(seconds):
            records = (await consumer.getmany(partition_id, timeout_ms=200, max_records=100)).get(partition_id, [])
            if records:
                busy_at = time.monotonic()
                async with producer.transaction():  # commits, or aborts on an exception
                    sent = [await producer.send(target, (one.value or b"").upper(), key=one.key) for one in records]
                    for report in sent:
                        await report  # raises if the record was rejected; the commit alone would not
                    await producer.send_offsets_to_transaction({partition_id: records[-1].offset + 1}, GROUP)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
