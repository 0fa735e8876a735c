"""`headrace tail TOPIC...`: print records as they arrive, without a group and without committing offsets."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

import click

from headrace.cli.cluster_client import with_cluster
from headrace.cli.options import server_option
from headrace.cli.output import output_option, shortened, wants_json
from headrace.cli.start_position import StartPosition, offsets_at, partitions_of, resolve_offsets
from headrace.cli.topics.consume import choose_printer, print_records
from headrace.client.cluster import Cluster
from headrace.client.fetch.consumer import Consumer
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.groups.offsets import END
from headrace.client.metadata import TopicPartition

_SHOWN_MAX = 201
_POLL_SECONDS = 0.1


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Start with this many of the last records.",
)
@server_option
@output_option
def tail(topics: Sequence[str], lines: int, server: str, output: str | None) -> None:
    """Watch TOPIC live: the last records, then every new one, until Ctrl-C."""
    printer = choose_printer(None, None, as_json=True) if wants_json(output) else _line

    async def work(cluster: Cluster) -> None:
        targets = await partitions_of(cluster, *topics)
        ends = await offsets_at(cluster, targets, END)
        begin = await resolve_offsets(cluster, targets, StartPosition("before_end", lines))
        async with Consumer(cluster, partitions=begin) as consumer:
            with suppress(asyncio.CancelledError):
                past = await _read_until(consumer, ends)
                sys.stdout.buffer.writelines(map(printer, past[-lines:]))
                sys.stdout.buffer.flush()
                await print_records(consumer, printer, None, None)

    with_cluster(server, work)


async def _read_until(consumer: Consumer, ends: dict[TopicPartition, int]) -> list[ConsumedRecord]:
    """Read the existing records up to the ends, oldest first over all partitions."""
    records: list[ConsumedRecord] = []
    while any(consumer.position(target) < end for target, end in ends.items()):
        records += await consumer.poll(timeout_seconds=_POLL_SECONDS)
    return sorted(records, key=lambda record: (record.timestamp_ms, record.topic, record.partition, record.offset))


def _line(record: ConsumedRecord) -> bytes:
    """Format a record as one line of a terminal, truncated if it is long."""
    moment = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).astimezone()
    key = "-" if record.key is None else _shown(record.key)
    value = "(null)" if record.value is None else _shown(record.value)
    place = f"{record.topic}[{record.partition}]@{record.offset}"
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03} {place}  {key}  {value}\n".encode()


def _shown(data: bytes) -> str:
    return shortened(data[: _SHOWN_MAX + 1].decode(errors="replace"), _SHOWN_MAX)
