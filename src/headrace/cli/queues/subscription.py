"""`headrace subscription ...`: manage subscriptions, and peek at, pull and settle their messages."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Any

import click

from headrace.cli.cluster_client import with_cluster
from headrace.cli.completion import SUBSCRIPTION, TOPIC
from headrace.cli.failure import CommandFailed, InvalidValue
from headrace.cli.options import (
    DURATION,
    ParsedType,
    confirm,
    dry_run_option,
    parse_settings,
    server_option,
    usage_errors,
    yes_option,
)
from headrace.cli.output import (
    counted,
    echo,
    local_time,
    output_option,
    print_json,
    print_rows,
    print_status,
    print_table,
    shortened,
    wants_json,
)
from headrace.cli.record_format import envelope_of
from headrace.cli.start_position import parse_ago, parse_start_position
from headrace.client.admin.subscription_admin import END, START, PartitionBacklog, Position, SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.metadata import TopicPartition
from headrace.client.queues.leased_messages import LeasedMessage, receipt_from_text
from headrace.client.queues.settling import ACK, NACK, REJECT, FailedSettlement, settle
from headrace.client.queues.subscription import Subscription
from headrace.model.errors import InvalidConfig
from headrace.model.ids import MessageId, message_id_from_text
from headrace.runtime.clock import SystemClock
from headrace.wire.messages.queues import SettleItem

_COUNTS = ("backlog", "leased", "waiting", "dying")
_LIST_COLUMNS = ("subscription", "topic", "partitions", *_COUNTS, "oldest")
_PARTITION_COLUMNS = ("topic", "partition", "floor", "end", *_COUNTS, "oldest")
_FLOOR_COLUMNS = ("topic", "partition", "floor")
_INVALID_POSITION = "is not a position; write start, end, N, @TIME or 2h-ago"
_MESSAGE_COLUMNS = ("receipt", "attempt", "key", "value")
_PEEK_COLUMNS = ("id", "state", "attempts", "key", "value")
_STATUS_COLUMNS = ("subscription", "state", "attempts", "how", "at", "until", "member", "reason")
_SHOWN_MAX = 60
_UNSET = -1


def parse_position(text: str, now_ms: int) -> Position:
    """Parse a position, or raise ValueError with a message for the user."""
    time_ms = parse_ago(text, now_ms)
    if time_ms is not None:
        return Position(timestamp_ms=time_ms)
    try:
        where = parse_start_position(text)
    except ValueError:
        if text.startswith("@"):
            raise
        raise ValueError(f"{text!r} {_INVALID_POSITION}") from None
    if where.kind == "time":
        return Position(timestamp_ms=where.number)
    if where.kind == "offset":
        return Position(where.number)
    if where.number:
        raise ValueError(f"{text!r} {_INVALID_POSITION}")
    return Position(START if where.kind == "after_start" else END)


POSITION = ParsedType("position", lambda text: parse_position(text, SystemClock().now_ms()))


@click.group()
def subscription() -> None:
    """Create, show, seek and delete subscriptions; pull and ack messages.

    \b
    headrace subscription create orders billing --at start
    headrace subscription pull orders billing -n 10 --ack
    headrace subscription describe billing
    """


@subscription.command()
@click.argument("topic", type=TOPIC)
@click.argument("name")
@click.option("--at", type=POSITION, default="start", show_default=True, help="start, end, an offset, @TIME or 2h-ago.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A config of the subscription; repeatable."
)
@server_option
@output_option
def create(topic: str, name: str, at: Position, settings: Sequence[str], server: str, output: str | None) -> None:
    """Create the subscription NAME of TOPIC. An existing subscription keeps its position; --set changes its settings.

    \b
    headrace subscription create orders billing --at 2h-ago --set headrace.key.concurrency=1
    """
    changes = parse_settings(settings)

    async def work(cluster: Cluster) -> tuple[bool, Mapping[TopicPartition, int]]:
        admin = SubscriptionAdmin(cluster)
        try:
            return await admin.exists(topic, name), await admin.create(topic, name, at, changes)
        except InvalidConfig as error:
            raise InvalidValue(f"{error.message}; docs/queues.md describes all settings of subscriptions") from None

    existed, floors = with_cluster(server, work)
    print_rows(_floor_rows(floors), _FLOOR_COLUMNS, output)
    set_to = ", ".join(f"{key}={value}" for key, value in changes.items())
    if not existed:
        print_status(f"subscription {name} of {topic} created")
    elif changes:
        print_status(f"subscription {name} of {topic} existed already: settings changed to {set_to}; position kept")
    else:
        print_status(f"subscription {name} of {topic} existed already: position and settings kept")


@subscription.command("list")
@server_option
@output_option
def list_subscriptions(server: str, output: str | None) -> None:
    """List subscriptions and their backlogs."""
    backlogs = with_cluster(server, lambda cluster: SubscriptionAdmin(cluster).list())
    by_topic = groupby(backlogs, key=lambda one: (one.subscription, one.target.topic))
    print_rows([_sum_row(*key, list(group)) for key, group in by_topic], _LIST_COLUMNS, output)


@subscription.command()
@click.argument("name", type=SUBSCRIPTION)
@click.option("--topic", "topics", type=TOPIC, multiple=True, metavar="TOPIC", help="Only in these topics; repeatable.")
@click.option("--configs", is_flag=True, help="Also show settings that have their default.")
@server_option
@output_option
def describe(name: str, topics: Sequence[str], configs: bool, server: str, output: str | None) -> None:
    """Show position and backlog of the subscription NAME per partition, and its settings."""

    async def work(
        cluster: Cluster,
    ) -> tuple[Sequence[PartitionBacklog], Mapping[str, Mapping[str, str | None]]]:
        admin = SubscriptionAdmin(cluster)
        backlogs = await admin.describe(name, topics or None)
        of_topic = {one.target.topic: None for one in backlogs}
        return backlogs, {topic: await admin.configs(topic, name, with_defaults=configs) for topic in of_topic}

    backlogs, settings = with_cluster(server, work)
    if wants_json(output):
        print_json(_partition_row(one) | {"configs": settings[one.target.topic]} for one in backlogs)
        return
    print_table([_partition_row(one) for one in backlogs], _PARTITION_COLUMNS)
    rows = [
        {"topic": topic, "config": config, "value": value}
        for topic, values in settings.items()
        for config, value in values.items()
    ]
    echo()
    if rows:
        print_table(rows, ("topic", "config", "value"))
    else:
        print_status("all settings have their defaults; --configs shows them")


@subscription.command()
@click.argument("topic", type=TOPIC)
@click.argument("name", type=SUBSCRIPTION)
@click.option("--to", type=POSITION, required=True, help="start, end, an offset, @TIME or 2h-ago.")
@click.option(
    "-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this one; repeatable."
)
@yes_option
@dry_run_option
@server_option
@output_option
def seek(
    topic: str,
    name: str,
    *,
    to: Position,
    partitions: Sequence[int],
    yes: bool,
    dry_run: bool,
    server: str,
    output: str | None,
) -> None:
    """Move the subscription NAME of TOPIC. All messages after the new position are delivered again, settled or not."""
    if dry_run:
        backlogs = with_cluster(server, lambda cluster: SubscriptionAdmin(cluster).describe(name, [topic]))
        chosen = [one for one in backlogs if not partitions or one.target.partition in partitions]
        print_rows([_partition_row(one) for one in chosen], _PARTITION_COLUMNS, output)
        print_status("no changes made (--dry-run)")
        return
    confirm(f"Move {name} of {topic}? Leases end, and settled messages after the position are delivered again.", yes)
    floors = with_cluster(server, lambda cluster: SubscriptionAdmin(cluster).seek(topic, name, to, partitions))
    print_rows(_floor_rows(floors), _FLOOR_COLUMNS, output)


@subscription.command()
@click.argument("topic", type=TOPIC)
@click.argument("name", type=SUBSCRIPTION)
@yes_option
@dry_run_option
@server_option
def delete(topic: str, name: str, yes: bool, dry_run: bool, server: str) -> None:
    """Delete the subscription NAME of TOPIC and its acknowledgements."""
    confirm(f"Delete the subscription {name} of {topic}?", yes or dry_run)

    async def work(cluster: Cluster) -> int:
        admin = SubscriptionAdmin(cluster)
        backlog = sum(one.backlog for one in await admin.describe(name, [topic]))
        if not dry_run:
            await admin.delete(topic, name)
        return backlog

    backlog = with_cluster(server, work)
    verdict = "would be deleted" if dry_run else "deleted"
    print_status(f"subscription {name} of {topic} {verdict}; {counted(backlog, 'message')} not settled")


def _floor_rows(floors: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    return [target._asdict() | {"floor": floor} for target, floor in sorted(floors.items())]


def _partition_row(one: PartitionBacklog) -> dict[str, Any]:
    return {
        "subscription": one.subscription,
        **one.target._asdict(),
        "floor": one.floor,
        "end": one.end,
        **{count: getattr(one, count) for count in _COUNTS},
        "oldest": local_time(one.oldest_ms),
    }


def _sum_row(name: str, topic: str, backlogs: Sequence[PartitionBacklog]) -> dict[str, Any]:
    oldest_ms = min((one.oldest_ms for one in backlogs if one.oldest_ms is not None), default=None)
    return {
        "subscription": name,
        "topic": topic,
        "partitions": len(backlogs),
        **{count: sum(getattr(one, count) for one in backlogs) for count in _COUNTS},
        "oldest": local_time(oldest_ms),
    }


@subscription.command()
@click.argument("topic", type=TOPIC)
@click.argument("name", type=SUBSCRIPTION)
@click.option("-n", "--count", type=click.IntRange(1), default=20, show_default=True, help="At most this many.")
@server_option
@output_option
def peek(topic: str, name: str, count: int, server: str, output: str | None) -> None:
    """Show unsettled messages of TOPIC for the subscription NAME, oldest first, without leasing them."""

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        async with aclosing(SubscriptionAdmin(cluster).peek(topic, name)) as peeked:
            async for record, status in peeked:
                message_id = MessageId(record.topic, record.partition, record.offset)
                row = {"id": str(message_id), "state": status.state, "attempts": status.attempts}
                rows.append(row | _content(record, output))
                if len(rows) == count:
                    break
        return rows

    print_rows(with_cluster(server, work), _PEEK_COLUMNS, output)


@subscription.command()
@click.argument("topic", type=TOPIC)
@click.argument("name", type=SUBSCRIPTION)
@click.option("-n", "--count", type=click.IntRange(1, 10_000), default=1, show_default=True, help="At most this many.")
@click.option("--wait", "wait_ms", type=DURATION, default=0, help="Wait for the first message, for example 10s.")
@click.option("--lease", "lease_ms", type=DURATION, help="The lease duration; default: as configured.")
@click.option("--ack", "acks", is_flag=True, help="Ack the messages after printing them.")
@server_option
@output_option
def pull(
    topic: str,
    name: str,
    *,
    count: int,
    wait_ms: int,
    lease_ms: int | None,
    acks: bool,
    server: str,
    output: str | None,
) -> None:
    """Lease messages of TOPIC for the subscription NAME and print them, with the receipts that `ack` requires.

    \b
    headrace subscription pull orders billing -n 10 --wait 5s --ack
    """
    lease_seconds = None if lease_ms is None else lease_ms / 1000

    async def work(cluster: Cluster) -> list[FailedSettlement]:
        # Check first: a lease creates a missing subscription, so a mistyped name would create one.
        await SubscriptionAdmin(cluster).describe(name, [topic])
        async with Subscription(cluster, topic, name, lease_seconds) as member:
            messages = await member.lease(count, wait_ms / 1000)
            if not messages:
                print_status(
                    "no message is available; `headrace subscription describe` shows leased and waiting messages"
                )
            print_rows([_message_row(message, output) for message in messages], _MESSAGE_COLUMNS, output)
            sys.stdout.flush()
            return await member.ack(messages) if acks else []

    _print_failed(with_cluster(server, work))


@subscription.command()
@click.argument("name", type=SUBSCRIPTION)
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@click.option("--nack", "nacks", is_flag=True, help="Release the messages for redelivery.")
@click.option("--delay", "delay_ms", type=DURATION, help="With --nack: the retry delay; default: as configured.")
@click.option("--reject", "rejects", is_flag=True, help="Turn the messages into dead letters.")
@click.option("--reason", metavar="TEXT", help="With --nack or --reject: the reason.")
@server_option
def ack(
    name: str,
    receipts: Sequence[str],
    *,
    nacks: bool,
    delay_ms: int | None,
    rejects: bool,
    reason: str | None,
    server: str,
) -> None:
    """Settle messages of the subscription NAME, identified by the receipts of `pull`."""
    if nacks and rejects:
        raise click.UsageError("--nack and --reject exclude each other")
    if delay_ms is not None and not nacks:
        raise click.UsageError("--delay requires --nack")
    settlement = SettleItem(
        how=NACK if nacks else REJECT if rejects else ACK,
        delay_ms=_UNSET if delay_ms is None else delay_ms,
        reason=reason,
    )
    with usage_errors():
        found = [receipt_from_text(text) for text in receipts]
    failed = with_cluster(server, lambda cluster: settle(cluster, name, found, settlement))
    print_status(f"{len(found) - len(failed)} of {counted(len(found), 'message')} settled")
    _print_failed(failed)


@subscription.command()
@click.argument("message", metavar="ID")
@click.option(
    "--subscription",
    "names",
    type=SUBSCRIPTION,
    multiple=True,
    metavar="NAME",
    help="Only this subscription; repeatable.",
)
@server_option
@output_option
def status(message: str, names: Sequence[str], server: str, output: str | None) -> None:
    """Show the status of the message ID (<topic>:<partition>:<offset>) in each subscription."""
    with usage_errors():
        message_id = message_id_from_text(message)
    statuses = with_cluster(server, lambda cluster: SubscriptionAdmin(cluster).status(message_id, names or None))
    rows = [
        {
            "id": str(message_id),
            "subscription": one.subscription,
            "state": one.state,
            "attempts": one.attempts,
            "how": one.how,
            "at": local_time(one.at_ms),
            "until": local_time(one.until_ms),
            "member": one.member,
            "reason": one.reason,
        }
        for one in statuses
    ]
    print_rows(rows, _STATUS_COLUMNS, output)


def _print_failed(failed: Sequence[FailedSettlement]) -> None:
    if not failed:
        return
    for one in failed:
        print_status(f"{one.receipt.id}: {one.error.message}")
    raise CommandFailed(f"{counted(len(failed), 'message')} not settled; a lease may have expired")


def _message_row(message: LeasedMessage, output: str | None) -> dict[str, Any]:
    record = ConsumedRecord(*message.id, message.timestamp_ms, message.key, message.value, message.headers)
    row = {"receipt": str(message.receipt), "id": str(message.id), "attempt": message.attempt}
    return row | {"leased_until": local_time(message.leased_until_ms)} | _content(record, output)


def _content(record: ConsumedRecord, output: str | None) -> dict[str, Any]:
    """Return the complete content as JSON, or shortened to a line of a table."""
    if wants_json(output):
        return envelope_of(record)
    return {"key": _shown(record.key), "value": _shown(record.value)}


def _shown(data: bytes | None) -> str | None:
    text = None if data is None else data.decode("utf-8", "backslashreplace")
    return text and shortened(text, _SHOWN_MAX, filler=" ", end="...")
