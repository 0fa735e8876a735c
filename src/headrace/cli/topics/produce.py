"""`headrace produce TOPIC`: write one record per line of input, or a single VALUE."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import click

from headrace.cli.cluster_client import with_cluster
from headrace.cli.completion import TOPIC
from headrace.cli.failure import CommandFailed
from headrace.cli.options import DURATION, server_option
from headrace.cli.output import counted, print_status, to_json
from headrace.cli.queues.schedule import ensure_owner, header_of, when_options
from headrace.cli.record_format import RecordEnvelope, read_envelope
from headrace.client.cluster import Cluster
from headrace.client.produce.producer import Delivery, Producer, ProducerSettings, Receipt
from headrace.client.produce.sender import Wait
from headrace.client.queues.schedule import When
from headrace.model.names import delayed_topic

_READ_SIZE = 256 * 1024


async def read_lines(descriptor: int | None = None) -> AsyncIterator[bytes]:
    """Yield every line without its line break. The event loop is not blocked: records are sent while the user types."""
    rest = b""
    async for piece in _pieces(sys.stdin.fileno() if descriptor is None else descriptor):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


async def _pieces(descriptor: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except OSError:
        # The event loop cannot poll regular files, but reading them never blocks for long.
        while piece := os.read(descriptor, _READ_SIZE):
            yield piece
        return
    try:
        while True:
            await readable.wait()
            readable.clear()
            if not (piece := os.read(descriptor, _READ_SIZE)):
                return
            yield piece
    finally:
        loop.remove_reader(descriptor)


_UNCONFIRMED_MAX = 10_000
_SILENT_SECONDS = 1.0
_TOPIC_WAIT_SECONDS = 10.0
_BUFFER_BYTES_MAX = 100_000_000
"""Less than the default of socket.request.max.bytes. The limit of a record is max.message.bytes of its topic, which the
broker checks."""
_ACKS = {"0": 0, "1": 1, "all": -1, "-1": -1}


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("value", required=False)
@click.option("-k", "--key", help="The key of every record.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; repeatable.")
@click.option("-K", "--key-separator", metavar="SEP", help="Lines are KEY SEP VALUE.")
@click.option("-p", "--partition", type=click.IntRange(0), help="The partition; default: by key, or round-robin.")
@click.option("--json", "as_json", is_flag=True, help="Lines are JSON objects, as `consume --json` prints them.")
@click.option(
    "-f", "--file", type=click.Path(exists=True, dir_okay=False), help="Read lines from this file instead of stdin."
)
@click.option("-Z", "--empty-is-null", is_flag=True, help="Write an empty value as null (a tombstone).")
@click.option("-a", "--acks", type=click.Choice(list(_ACKS)), default="all", show_default=True)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
)
@click.option(
    "--timeout",
    "timeout_ms",
    type=DURATION,
    default="30s",
    show_default=True,
    help="Fail when a record is not acknowledged after this time.",
)
@click.option("--receipts", is_flag=True, help="Print topic, partition and offset of every record as JSON.")
@when_options
@server_option
def produce(
    topic: str,
    value: str | None,
    *,
    key: str | None,
    headers: Sequence[str],
    key_separator: str | None,
    partition: int | None,
    as_json: bool,
    file: str | None,
    empty_is_null: bool,
    acks: str,
    compression: str,
    timeout_ms: int,
    receipts: bool,
    when: When | None,
    server: str,
) -> None:
    """Write records to TOPIC: VALUE, or one per line of stdin.

    \b
    headrace produce orders '{"id": 1}' -k c-42
    headrace produce orders -K: < keyed-lines.txt
    headrace consume old --json -e | headrace produce new --json
    headrace produce orders 'remind c-42' --delay 10m
    """
    if value is not None and file is not None:
        raise click.UsageError("VALUE and --file exclude each other")
    if as_json and key_separator is not None:
        raise click.UsageError("--json and -K exclude each other: JSON lines contain the key")
    named = [*map(header_of, headers), *(when.headers() if when is not None else ())]
    common = RecordEnvelope(None, None if key is None else key.encode(), named)
    separator = None if key_separator is None else key_separator.encode()
    timeout_seconds = max(timeout_ms, 1) / 1000
    settings = _producer_settings(acks, compression, timeout_seconds)

    async def work(cluster: Cluster) -> int:
        """Send records while reading the input, with a bounded number of unacknowledged records."""
        if when is not None:
            await ensure_owner(cluster, topic)
        target = topic if when is None else delayed_topic(topic)
        unconfirmed: deque[Delivery] = deque()
        number = 0
        async with Producer(cluster, settings) as producer, _waits_reported(producer):
            async for line in _lines(value, file):
                number += 1
                record = _parse_line(line, number, common, separator, as_json, empty_is_null)
                unconfirmed.append(
                    await producer.submit(
                        target, record.value, key=record.key, headers=record.headers, partition=partition
                    )
                )
                if len(unconfirmed) >= _UNCONFIRMED_MAX:
                    _print_receipt(await unconfirmed.popleft(), receipts)
            while unconfirmed:
                _print_receipt(await unconfirmed.popleft(), receipts)
        return number

    count = with_cluster(server, work, timeout_seconds)
    print_status(f"{counted(count, 'record')} to {topic}")


def _producer_settings(acks: str, compression: str, timeout_seconds: float) -> ProducerSettings:
    return ProducerSettings(
        acks=_ACKS[acks],
        compression=compression,
        record_bytes_max=_BUFFER_BYTES_MAX,
        buffer_bytes_max=_BUFFER_BYTES_MAX,
        delivery_timeout_seconds=timeout_seconds,
        topic_wait_seconds=min(_TOPIC_WAIT_SECONDS, timeout_seconds),
    )


@asynccontextmanager
async def _waits_reported(producer: Producer) -> AsyncIterator[None]:
    """Say on stderr what the producer waits for, while it makes no progress for a second."""

    async def report() -> None:
        before: Wait | None = None
        said = ""
        while True:
            await asyncio.sleep(_SILENT_SECONDS)
            wait = producer.oldest_wait
            if wait is not None and before is not None and wait.since == before.since and wait.what != said:
                said = wait.what
                print_status(f"waiting for {said}")
            before = wait

    reporting = asyncio.get_running_loop().create_task(report())
    try:
        yield
    finally:
        reporting.cancel()


def _print_receipt(receipt: Receipt, receipts: bool) -> None:
    if receipts:
        sys.stdout.write(to_json(receipt._asdict()) + "\n")


async def _lines(value: str | None, file: str | None) -> AsyncIterator[bytes]:
    if value is not None:
        yield value.encode()
        return
    if file is None:
        if sys.stdin.isatty():
            print_status("one record per line; end with Ctrl-D")
        async for line in read_lines():
            yield line
        return
    descriptor = os.open(file, os.O_RDONLY)
    try:
        async for line in read_lines(descriptor):
            yield line
    finally:
        os.close(descriptor)


def _parse_line(
    line: bytes, number: int, common: RecordEnvelope, separator: bytes | None, as_json: bool, empty_is_null: bool
) -> RecordEnvelope:
    """Parse a line according to the options; `common` has the key and the headers of all records."""
    if as_json:
        try:
            found = read_envelope(line)
        except ValueError as error:
            raise CommandFailed(
                f"line {number} is not a valid JSON record: {error}; see `headrace produce --help`"
            ) from None
        key = common.key if found.key is None else found.key
        return RecordEnvelope(found.value, key, [*common.headers, *found.headers])
    key, value = common.key, line
    if separator is not None:
        key, has_separator, value = line.partition(separator)
        if not has_separator:
            raise CommandFailed(f"line {number} has no key separator {separator.decode()!r} (-K)")
    return RecordEnvelope(value if value or not empty_is_null else None, key, common.headers)
