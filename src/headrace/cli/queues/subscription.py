"""`headrace subscription ...`: manage queues. `pull`, `ack` and `peek` are in `subscription_messages`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import click

from headrace.cli.cluster_client import with_cluster
from headrace.cli.failure import CommandFailed
from headrace.cli.options import ParsedType, confirm, dry_run_option, parse_settings, server_option, yes_option
from headrace.cli.output import local_time, output_option, print_rows, print_status
from headrace.cli.queues.subscription_messages import ack, peek, pull, status
from headrace.cli.start_position import parse_ago, parse_start_position
from headrace.client.admin.subscription_admin import END, START, PartitionBacklog, Position, SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicPartition
from headrace.model.errors import InvalidConfig
from headrace.runtime.clock import SystemClock

_COUNTS = ("backlog", "leased", "waiting", "dying")
_LIST_COLUMNS = ("subscription", "topic", "partitions", *_COUNTS, "oldest")
_PARTITION_COLUMNS = ("topic", "partition", "floor", "end", *_COUNTS, "oldest")
_FLOOR_COLUMNS = ("topic", "partition", "floor")
_INVALID_POSITION = "is not a position; write start, end, N, @TIME or 2h-ago"


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


for command in (peek, pull, ack, status):
    subscription.add_command(command)


@subscription.command()
@click.argument("topic")
@click.argument("name")
@click.option("--at", type=POSITION, default="end", show_default=True, help="start, end, an offset, @TIME or 2h-ago.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A config of the subscription; repeatable."
)
@server_option
@output_option
def create(topic: str, name: str, at: Position, settings: Sequence[str], server: str, output: str | None) -> None:
    """Create the subscription NAME of TOPIC. An existing subscription keeps its position.

    \b
    headrace subscription create orders billing --at 2h-ago --set headrace.key.concurrency=1
    """
    changes = parse_settings(settings)

    async def work(cluster: Cluster) -> Mapping[TopicPartition, int]:
        try:
            return await SubscriptionAdmin(cluster).create(topic, name, at, changes)
        except InvalidConfig as error:
            raise CommandFailed(f"{error.message}; docs/queues.md describes all settings of subscriptions") from None

    floors = with_cluster(server, work)
    print_rows(_floor_rows(floors), _FLOOR_COLUMNS, output)
    print_status(f"subscription {name} of {topic} exists")


@subscription.command("list")
@server_option
@output_option
def list_subscriptions(server: str, output: str | None) -> None:
    """List subscriptions and their backlogs."""
    backlogs = with_cluster(server, lambda cluster: SubscriptionAdmin(cluster).list())
    by_topic = groupby(backlogs, key=lambda one: (one.subscription, one.target.topic))
    print_rows([_sum_row(*key, list(group)) for key, group in by_topic], _LIST_COLUMNS, output)


@subscription.command()
@click.argument("name")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only in these topics; repeatable.")
@server_option
@output_option
def describe(name: str, topics: Sequence[str], server: str, output: str | None) -> None:
    """Show position and backlog of the subscription NAME per partition."""
    backlogs = with_cluster(server, lambda cluster: SubscriptionAdmin(cluster).describe(name, topics or None))
    print_rows([_partition_row(one) for one in backlogs], _PARTITION_COLUMNS, output)


@subscription.command()
@click.argument("topic")
@click.argument("name")
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
@click.argument("topic")
@click.argument("name")
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
    print_status(f"subscription {name} of {topic} {verdict}; {backlog} messages were not settled")


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
