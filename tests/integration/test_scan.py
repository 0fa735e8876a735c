"""A scan of a real broker returns as columns exactly what a consumer gets, also after restarts and in forked
processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from tests.integration.process import BrokerProcess

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.fetch.consumer import Consumer, ConsumerSettings
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Producer, ProducerSettings
from headrace.client.transactions.transactional_producer import TransactionalProducer
from headrace.columns.offsets import bounds, offsets_at, topics_matching
from headrace.columns.scan import RangeOutOfLog, scan
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.errors import UnknownTopicOrPartition
from headrace.wire.batches.compression import NAMES

ORDERS = TopicPartition("orders", 0)

Row = tuple[object, ...]


def rows_of(taken: Iterable[pa.RecordBatch]) -> list[Row]:
    """Return rows in the form of `consumed`."""
    found: list[Row] = []
    for rows in taken:
        rows.validate(full=True)
        assert set(rows.column("topic").to_pylist()) <= {"orders"}
        timestamps_ms = [timestamp.value // 1000 for timestamp in rows.column("timestamp")]
        headers = [[(pair["key"], pair["value"]) for pair in pairs] for pairs in rows.column("headers").to_pylist()]
        keys, values, offsets = (rows.column(name).to_pylist() for name in ("key", "value", "offset"))
        found += zip(offsets, timestamps_ms, keys, values, headers, strict=True)
    return found


def consumed(broker: BrokerProcess, *, read_committed: bool) -> list[Row]:
    async def work(cluster: Cluster) -> list[Row]:
        settings = ConsumerSettings(read_committed=read_committed)
        found: list[Row] = []
        async with Consumer(cluster, partitions={ORDERS: 0}, settings=settings) as consumer:
            async for record in consumer:
                if record.value == b"last":
                    return found
                found.append(
                    (record.offset, record.timestamp_ms, record.key, record.value, [tuple(h) for h in record.headers])
                )
        raise AssertionError("a consumer does not end")

    return sync_cluster(broker.address).call(work)


def create(broker: BrokerProcess, partitions: int = 1) -> None:
    sync_cluster(broker.address).call(
        lambda cluster: TopicAdmin(cluster).create(NewTopic("orders", partitions=partitions))
    )


def write(broker: BrokerProcess, values: Iterable[bytes], compression: str = "none", partition: int = 0) -> None:
    async def work(cluster: Cluster) -> None:
        settings = ProducerSettings(compression=compression, batch_bytes_max=2000)
        async with Producer(cluster, settings) as producer:
            for number, value in enumerate(values):
                key = None if number % 3 == 0 else b"%d" % number
                headers = [("n", b"%d" % number), ("é", None)] if number % 2 else []
                await producer.submit("orders", value or None, key=key, headers=headers, partition=partition)

    sync_cluster(broker.address).call(work)


def write_transaction(broker: BrokerProcess, values: Iterable[bytes], *, is_commit: bool) -> None:
    async def work(cluster: Cluster) -> None:
        async with TransactionalProducer(cluster, "writer") as producer:
            await producer.begin()
            for delivery in [await producer.submit("orders", value, partition=0) for value in values]:
                await delivery  # or an abort would drop what was not yet sent
            await (producer.commit() if is_commit else producer.abort())

    sync_cluster(broker.address).call(work)


def test_a_scan_returns_the_same_records_as_a_consumer(broker: BrokerProcess) -> None:
    create(broker)
    for compression in NAMES.values():
        write(broker, [b"", *(b"%d" % number * 20 for number in range(100))], compression)
        write_transaction(broker, [b"kept"] * 10, is_commit=True)
        write_transaction(broker, [b"aborted"] * 10, is_commit=False)
    end = bounds(broker.address, ["orders"])[ORDERS].latest  # behind a marker
    write(broker, [b"last"])
    for read_committed in (True, False):
        expected = consumed(broker, read_committed=read_committed)
        assert len(expected) == len(NAMES) * (111 if read_committed else 121)
        scanned = scan(broker.address, *ORDERS, 0, end, read_committed=read_committed)
        assert rows_of(scanned) == expected
        in_small_steps = scan(broker.address, *ORDERS, 0, end, read_committed=read_committed, fetch_bytes=1, rows_max=7)
        assert rows_of(in_small_steps) == expected
        part = scan(broker.address, *ORDERS, 33, end - 33, read_committed=read_committed)
        assert rows_of(part) == [row for row in expected if 33 <= int(str(row[0])) < end - 33]
    assert list(scan(broker.address, *ORDERS, 5, 5)) == []


def test_a_scan_survives_a_restart_of_the_broker(broker: BrokerProcess) -> None:
    create(broker)
    write(broker, [b"%d" % number for number in range(3000)])
    taken = scan(broker.address, *ORDERS, 0, 3000, fetch_bytes=5000, rows_max=100)
    found = [next(taken)]
    for _ in range(2):
        broker.restart()
        found += [next(taken), next(taken), next(taken)]
    found += taken
    assert [row[3] for row in rows_of(found)] == [b"%d" % number for number in range(3000)]


def test_a_range_outside_the_log_is_reported(broker: BrokerProcess) -> None:
    create(broker)
    write(broker, [b"%d" % number for number in range(100)])
    sync_cluster(broker.address).call(lambda cluster: TopicAdmin(cluster).trim({ORDERS: 60}))
    with pytest.raises(RangeOutOfLog, match="starts at 60") as raised:
        list(scan(broker.address, *ORDERS, 10, 80))
    assert (raised.value.log_start, raised.value.log_end) == (60, 100)
    with pytest.raises(RangeOutOfLog, match="before 100"):
        list(scan(broker.address, *ORDERS, 90, 200, deadline_seconds=0.5))
    assert [row[0] for row in rows_of(scan(broker.address, *ORDERS, 60, 100))] == list(range(60, 100))
    with pytest.raises(UnknownTopicOrPartition):
        list(scan(broker.address, "bills", 0, 0, 10))


def test_an_abandoned_scan_does_not_affect_the_next_one(broker: BrokerProcess) -> None:
    create(broker)
    write(broker, [b"%d" % number for number in range(1000)])
    for _ in range(5):
        next(iter(scan(broker.address, *ORDERS, 0, 1000, fetch_bytes=1, rows_max=1)))
    assert len(rows_of(scan(broker.address, *ORDERS, 0, 1000))) == 1000


def test_many_threads_scan_concurrently(broker: BrokerProcess) -> None:
    create(broker, partitions=4)
    for partition in range(4):
        write(broker, [b"%d" % partition] * 500, partition=partition)

    def values(number: int) -> set[object]:
        return {row[3] for row in rows_of(scan(broker.address, "orders", number % 4, 0, 500, fetch_bytes=3000))}

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(values, range(16))) == [{b"%d" % (number % 4)} for number in range(16)]


FORKED = """
import os, sys
from headrace.columns.offsets import bounds
from headrace.columns.scan import scan
address = sys.argv[1]
def count():
    return sum(rows.num_rows for rows in scan(address, "orders", 0, 0, 500))
assert count() == 500
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(0 if count() == 500 else 1)
    children.append(child)
assert count() == 500
print([os.waitpid(child, 0)[1] for child in children])
"""


def test_forked_workers_have_their_own_connections(broker: BrokerProcess) -> None:
    """Workers are forked like Spark's: the daemon that forks them may have read before."""
    create(broker)
    write(broker, [b"%d" % number for number in range(500)])
    found = subprocess.run(
        [sys.executable, "-c", FORKED, broker.address], capture_output=True, text=True, timeout=60, check=False
    )
    assert (found.stdout, found.stderr) == ("[0, 0, 0]\n", "")


def test_a_driver_finds_the_available_offsets(broker: BrokerProcess) -> None:
    create(broker, partitions=2)
    write(broker, [b"a", b"b"], partition=1)
    other = TopicPartition("orders", 1)
    write_transaction(broker, [b"c"], is_commit=False)
    assert bounds(broker.address, ["orders"]) == {ORDERS: (0, 2), other: (0, 2)}
    assert topics_matching(broker.address, "ord.*|__transaction_state") == ["orders"]
    assert topics_matching(broker.address, "ord") == []
    assert offsets_at(broker.address, {ORDERS: 0, other: 1 << 60}) == {ORDERS: 0, other: None}


def test_records_of_open_transactions_are_not_available(broker: BrokerProcess) -> None:
    create(broker)
    write(broker, [b"a"])

    async def work(cluster: Cluster) -> TransactionalProducer:
        producer = TransactionalProducer(cluster, "writer")
        await producer.start()
        await producer.begin()
        await (await producer.submit("orders", b"open", partition=0))
        return producer

    producer = sync_cluster(broker.address).call(work)
    assert bounds(broker.address, ["orders"])[ORDERS].latest == 1
    assert bounds(broker.address, ["orders"], read_committed=False)[ORDERS].latest == 2
    with pytest.raises(RangeOutOfLog):
        list(scan(broker.address, *ORDERS, 0, 2, deadline_seconds=0.5))
    assert len(rows_of(scan(broker.address, *ORDERS, 0, 2, read_committed=False))) == 2

    async def end(_: Cluster) -> None:
        await producer.commit()
        await producer.close()

    sync_cluster(broker.address).call(end)
    assert len(rows_of(scan(broker.address, *ORDERS, 0, 3))) == 2
