"""`headrace bench ...`: generate load with the Python client, for a quick check of a broker.

It is not suitable for a comparison with other brokers, because the Python load generator is the bottleneck. Use
`make bench` for that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import click

from headrace.cli.cluster_client import with_cluster
from headrace.cli.options import server_option
from headrace.cli.output import echo, output_option, print_status, to_json, wants_json
from headrace.cli.start_position import log_bounds, offsets_at, partitions_of
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.fetch.consumer import Consumer
from headrace.client.groups.offsets import END
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Delivery, Producer, ProducerSettings

_UNCONFIRMED_MAX = 20_000
_POLLED_MAX = 5000
_ACKS = {"0": 0, "1": 1, "all": -1}


@click.group()
def bench() -> None:
    """Generate load on a broker and measure throughput and latency.

    The load generator is a single Python process, so the results are those of one Python client. To compare
    Headrace with other brokers use `make bench`.
    """


@bench.command()
@click.option("--topic", default="headrace-bench", show_default=True)
@click.option(
    "--partitions",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Partitions of the topic, if it is created.",
)
@click.option("--records", type=click.IntRange(1), default=200_000, show_default=True)
@click.option("--size", type=click.IntRange(0), default=1024, show_default=True, help="Bytes per value.")
@click.option("--acks", type=click.Choice(list(_ACKS)), default="all", show_default=True)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
)
@click.option("--linger", type=click.FloatRange(0), default=0.0, show_default=True, help="Batching delay in seconds.")
@server_option
@output_option
def produce(
    *,
    topic: str,
    partitions: int,
    records: int,
    size: int,
    acks: str,
    compression: str,
    linger: float,
    server: str,
    output: str | None,
) -> None:
    """Write records at the maximum rate."""
    settings = ProducerSettings(acks=_ACKS[acks], compression=compression, linger_seconds=linger)

    async def work(cluster: Cluster) -> dict[str, Any]:
        await _ensure_topic(cluster, topic, partitions)
        clock = cluster.clock
        value = b"x" * size
        sent: deque[tuple[float, Delivery]] = deque()
        latencies: list[float] = []
        began = clock.monotonic()
        async with Producer(cluster, settings) as producer:
            for number in range(records):
                # Sample one latency in a hundred: measuring each one would distort the result.
                delivery = await producer.submit(topic, value)
                if number % 100 == 0:
                    sent.append((clock.monotonic(), delivery))
                if len(sent) * 100 >= _UNCONFIRMED_MAX:
                    await _confirm(cluster, sent, latencies)
            while sent:
                await _confirm(cluster, sent, latencies)
            await producer.flush()
        return _result("produce", records, records * size, clock.monotonic() - began, latencies)

    _report(with_cluster(server, work), output)


@bench.command()
@click.option("--topic", default="headrace-bench", show_default=True)
@click.option("--records", type=click.IntRange(1), help="Stop after this many records; default: at the end.")
@server_option
@output_option
def consume(topic: str, records: int | None, server: str, output: str | None) -> None:
    """Read a topic from its start at the maximum rate."""

    async def work(cluster: Cluster) -> dict[str, Any]:
        targets = await partitions_of(cluster, topic)
        starts, ends = await log_bounds(cluster, targets)
        count = size = 0
        began = cluster.clock.monotonic()
        async with Consumer(cluster, partitions=starts) as consumer:
            while any(consumer.position(target) < ends[target] for target in targets):
                wanted = _POLLED_MAX if records is None else min(_POLLED_MAX, records - count)
                if wanted == 0:
                    break
                for record in await consumer.poll(wanted, 1.0):
                    count += 1
                    size += len(record.value or b"")
        return _result("consume", count, size, cluster.clock.monotonic() - began, [])

    _report(with_cluster(server, work), output)


@bench.command()
@click.option("--topic", default="headrace-bench-e2e", show_default=True)
@click.option("--rate", type=click.IntRange(1), default=500, show_default=True, help="Records per second.")
@click.option("--duration", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Duration in seconds.")
@click.option("--size", type=click.IntRange(0), default=100, show_default=True, help="Bytes per value.")
@server_option
@output_option
def e2e(topic: str, *, rate: int, duration: float, size: int, server: str, output: str | None) -> None:
    """Measure the end-to-end latency from sending a record to receiving it."""

    async def work(cluster: Cluster) -> dict[str, Any]:
        await _ensure_topic(cluster, topic, 1)
        target = TopicPartition(topic, 0)
        end = (await offsets_at(cluster, [target], END))[target]
        clock = cluster.clock
        count = max(1, int(rate * duration))
        sent: list[float] = []
        latencies: list[float] = []
        began = clock.monotonic()

        async def read() -> None:
            async with Consumer(cluster, partitions={target: end}) as consumer:
                while len(latencies) < count:
                    records = await consumer.poll()
                    now = clock.monotonic()
                    latencies.extend(now - sent[record.offset - end] for record in records)

        async with Producer(cluster) as producer, asyncio.TaskGroup() as group:
            reading = group.create_task(read())
            for number in range(count):
                await asyncio.sleep(max(0.0, began + number / rate - clock.monotonic()))
                sent.append(clock.monotonic())
                await producer.submit(topic, b"x" * size, partition=0)
            await reading
        return _result("e2e", count, count * size, clock.monotonic() - began, latencies)

    _report(with_cluster(server, work), output)


async def _ensure_topic(cluster: Cluster, topic: str, partitions: int) -> None:
    admin = TopicAdmin(cluster)
    if all(view.name != topic for view in await admin.list()):
        await admin.create(NewTopic(topic, partitions))


async def _confirm(cluster: Cluster, sent: deque[tuple[float, Delivery]], latencies: list[float]) -> None:
    at, delivery = sent.popleft()
    await delivery
    latencies.append(cluster.clock.monotonic() - at)


def _result(name: str, count: int, size: int, seconds: float, latencies: Sequence[float]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "bench": name,
        "records": count,
        "seconds": round(seconds, 3),
        "records_per_second": round(count / seconds),
        "mb_per_second": round(size / seconds / 1e6, 2),
    }
    if latencies:
        ordered = sorted(latencies)
        for percent in (50, 99):
            at = min(len(ordered) - 1, len(ordered) * percent // 100)
            result[f"p{percent}_ms"] = round(ordered[at] * 1000, 2)
    return result


def _report(result: dict[str, Any], output: str | None) -> None:
    if wants_json(output):
        echo(to_json(result))
    else:
        echo("  ".join(f"{name} {value}" for name, value in result.items()))
    print_status("the load came from one Python client; to compare with other brokers use `make bench`")
