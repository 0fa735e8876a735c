"""`headrace consume` and `headrace tail`: write records to stdout.

`tail` prints records as they arrive, without a group and without committing offsets.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

import click

from headrace.cli.cluster_client import with_cluster
from headrace.cli.completion import GROUP, TOPIC
from headrace.cli.options import server_option
from headrace.cli.output import output_option, print_status, shortened, to_json, wants_json
from headrace.cli.pipelines.archived_records import archived_ranges, open_archive, print_archived
from headrace.cli.record_format import Printer, compile_format, envelope_of
from headrace.cli.start_position import (
    FROM_END,
    FROM_START,
    START_POSITION,
    StartPosition,
    offsets_at,
    partitions_of,
    resolve_offsets,
)
from headrace.client.cluster import Cluster
from headrace.client.fetch.consumer import Consumer, ConsumerSettings, Start
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.groups.group_membership import GroupRules
from headrace.client.groups.offsets import END
from headrace.client.metadata import TopicPartition
from headrace.model.safe_text import escaped

_POLL_SECONDS = 0.1
_SHOWN_MAX = 201


@click.command()
@click.argument("topics", type=TOPIC, nargs=-1, required=True, metavar="TOPIC...")
@click.option("-g", "--group", type=GROUP, metavar="GROUP", help="Read as a member of this group, and commit offsets.")
@click.option(
    "-o",
    "--offset",
    "where",
    type=START_POSITION,
    metavar="POSITION",
    help="Start position: start (default), end, N, +N, -N or @TIME.",
)
@click.option("--from-beginning", is_flag=True, help="The same as -o start.")
@click.option(
    "-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this one; repeatable."
)
@click.option("-n", "--count", type=click.IntRange(1), help="Stop after this many records.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end of the log as of the start of the command.")
@click.option(
    "-f", "--format", "format_string", metavar="FORMAT", help=r"For example '%t %p %o %k %s\n'; see docs/cli.md."
)
@click.option("-K", "--key-separator", metavar="SEP", help="Print KEY SEP VALUE.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as a JSON object.")
@click.option("--from-archive", "archive", metavar="PATH", help="Read this archive first, then the log.")
@click.option("--read-committed", is_flag=True, help="Skip records of open and aborted transactions.")
@server_option
def consume(
    topics: Sequence[str],
    *,
    group: str | None,
    where: StartPosition | None,
    from_beginning: bool,
    partitions: Sequence[int],
    count: int | None,
    exit_at_end: bool,
    format_string: str | None,
    key_separator: str | None,
    as_json: bool,
    archive: str | None,
    read_committed: bool,
    server: str,
) -> None:
    """Write the records of TOPIC to stdout, one per line, until Ctrl-C, -n or -e.

    \b
    headrace consume orders -o -10 -e                  the last ten of each partition
    headrace consume orders -o @2026-11-15T10:00 --json
    headrace consume orders -g billing                 share the partitions with other members
    headrace consume orders --from-archive /archive    include records that retention has deleted
    """
    if group is not None and archive is not None:
        raise click.UsageError("-g cannot be combined with --from-archive: the group determines the start position")
    if group is not None and (partitions or (where is not None and where not in (FROM_START, FROM_END))):
        raise click.UsageError("with -g the group determines what to read: only -o start or end is allowed, and no -p")
    begin = FROM_START if from_beginning or where is None else where
    start: Start = "latest" if begin == FROM_END else "earliest"
    settings = ConsumerSettings(start=start, read_committed=read_committed)
    printer = choose_printer(format_string, key_separator, as_json)

    async def work(cluster: Cluster) -> int:
        printed = 0
        offsets: Mapping[TopicPartition, int] = {}
        if archive is not None:
            found = await archived_ranges(cluster, open_archive(archive), topics, partitions, begin)
            printed, continues = await print_archived(found, printer, count)
            logs = [one for one in found if one.log_end is not None]
            if not continues or not logs:
                return printed
            offsets = {one.target: max(one.start, one.archived_to, one.log_start) for one in logs}
            ends = {one.target: one.log_end or 0 for one in logs}
        else:
            targets = await _targets(cluster, topics, partitions)
            ends = await offsets_at(cluster, targets, END) if exit_at_end else {}
            if group is None:
                offsets = await resolve_offsets(cluster, targets, begin)
        if group is not None:
            consumer = Consumer(cluster, topics, group=GroupRules(group), settings=settings)
        else:
            consumer = Consumer(cluster, partitions=offsets, settings=settings)
        left = None if count is None else count - printed
        async with consumer:
            return printed + await print_records(consumer, printer, left, ends if exit_at_end else None)

    printed = with_cluster(server, work)
    print_status(f"{printed} record{'' if printed == 1 else 's'}")


async def print_records(
    consumer: Consumer, printer: Printer, count: int | None, ends: Mapping[TopicPartition, int] | None
) -> int:
    """Print until `count` records, until all `ends` are reached, or until interrupted."""
    printed = 0
    out = sys.stdout.buffer
    try:
        while not _reached(consumer, ends):
            batch_max = 500 if count is None else min(500, count - printed)
            records = await consumer.poll(batch_max, None if ends is None else _POLL_SECONDS)
            out.writelines(map(printer, records))
            out.flush()
            printed += len(records)
            if printed == count:
                break
    except asyncio.CancelledError:
        pass  # Ctrl-C is the normal way to end the command
    return printed


def choose_printer(format_string: str | None, key_separator: str | None, as_json: bool) -> Printer:
    """Choose how to print records: by format, with keys, as JSON, or values only. Control characters are escaped on a
    terminal, but not in a pipe."""
    if sum((format_string is not None, key_separator is not None, as_json)) > 1:
        raise click.UsageError("-f, -K and --json exclude each other")
    if as_json:
        return lambda record: to_json(envelope_of(record)).encode() + b"\n"
    printer = _raw_printer(format_string, key_separator)
    if not sys.stdout.isatty():
        return printer
    return lambda record: escaped(printer(record).decode(errors="backslashreplace"), keep="\n\t").encode()


def _raw_printer(format_string: str | None, key_separator: str | None) -> Printer:
    if format_string is not None:
        try:
            return compile_format(format_string)
        except ValueError as error:
            raise click.UsageError(f"-f: {error}") from None
    if key_separator is not None:
        separator = key_separator.encode()
        return lambda record: (record.key or b"") + separator + (record.value or b"") + b"\n"
    return lambda record: (record.value or b"") + b"\n"


def _reached(consumer: Consumer, ends: Mapping[TopicPartition, int] | None) -> bool:
    """Whether all assigned partitions have been read to the ends that they had at the start."""
    if ends is None:
        return False
    assigned = consumer.assignment
    return bool(assigned) and all(consumer.position(target) >= ends.get(target, 0) for target in assigned)


async def _targets(cluster: Cluster, topics: Sequence[str], partitions: Sequence[int]) -> list[TopicPartition]:
    targets = []
    for topic in topics:
        view = await cluster.topic(topic)
        chosen = partitions or range(len(view.partitions))
        targets += [TopicPartition(topic, (await cluster.partition(topic, number)).partition) for number in chosen]
    return targets


@click.command()
@click.argument("topics", type=TOPIC, nargs=-1, required=True, metavar="TOPIC...")
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
