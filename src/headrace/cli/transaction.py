"""`headrace transaction ...`: list, describe and abort transactions, including hanging ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from headrace.cli.cluster_client import with_cluster
from headrace.cli.completion import TOPIC
from headrace.cli.failure import CommandFailed
from headrace.cli.options import DURATION, confirm, dry_run_option, server_option, yes_option
from headrace.cli.output import (
    Row,
    counted,
    echo,
    local_time,
    output_option,
    print_rows,
    print_status,
    print_table,
    to_json,
    wants_json,
)
from headrace.client.admin.topic_admin import TopicAdmin
from headrace.client.admin.transaction_admin import STATES, OpenTransaction, TransactionAdmin, TransactionView
from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicPartition
from headrace.client.transactions.joint_commits import describe_joint_commit

_LIST_COLUMNS = ("transactional_id", "state", "producer_id", "coordinator")
_HANGING_COLUMNS = ("topic", "partition", "producer_id", "producer_epoch", "start_offset", "last_written")


@click.group()
def transaction() -> None:
    """List, describe and abort transactions and joint commits (bundles); find hanging transactions."""


@transaction.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only this state; repeatable.",
)
@click.option("--producer-id", "producer_ids", multiple=True, type=int, help="Only this producer; repeatable.")
@click.option("--older-than", type=DURATION, metavar="DURATION", help="Only transactions open for longer.")
@server_option
@output_option
def list_transactions(
    states: Sequence[str], producer_ids: Sequence[int], older_than: int | None, server: str, output: str | None
) -> None:
    """List transactional ids."""
    found = with_cluster(
        server,
        lambda cluster: TransactionAdmin(cluster).list(
            states=states, producer_ids=producer_ids, older_than_ms=older_than
        ),
    )
    rows = [{column: getattr(listed, column) for column in _LIST_COLUMNS} for listed in found]
    print_rows(rows, _LIST_COLUMNS, output)


@transaction.command()
@click.argument("transactional_id")
@server_option
@output_option
def describe(transactional_id: str, server: str, output: str | None) -> None:
    """Show producer, state and partitions of TRANSACTIONAL_ID."""
    view = with_cluster(server, lambda cluster: TransactionAdmin(cluster).describe(transactional_id))
    summary = {
        "transactional_id": view.transactional_id,
        "state": view.state,
        "coordinator": view.coordinator,
        "producer_id": view.producer_id,
        "producer_epoch": view.producer_epoch,
        "timeout_ms": view.timeout_ms,
        "started": local_time(view.start_ms),
    }
    partitions = [{"topic": topic, "partition": partition} for topic, partition in view.partitions]
    _print_details(summary, "partitions", partitions, ("topic", "partition"), output)


@transaction.command()
@click.argument("name")
@server_option
@output_option
def bundle(name: str, server: str, output: str | None) -> None:
    """Show the last joint commit of the bundle NAME.

    A bundle commits the transactions of several producers atomically, for example those of a batch of a Spark query.
    """
    view = with_cluster(server, lambda cluster: describe_joint_commit(cluster, name))
    if view.sequence < 0:
        raise CommandFailed(f"bundle {name} has no joint commit; `headrace transaction list` shows open transactions")
    members = [
        {"transactional_id": one.transactional_id, "producer_id": one.producer_id, "producer_epoch": one.epoch}
        for one in view.members
    ]
    summary = {"bundle": name, "sequence": view.sequence}
    _print_details(summary, "members", members, ("transactional_id", "producer_id", "producer_epoch"), output)


@transaction.command()
@click.argument("transactional_id", required=False)
@click.option("--topic", type=TOPIC, help="The topic of a hanging transaction.")
@click.option("--partition", type=click.IntRange(0), help="The partition of a hanging transaction.")
@click.option("--start-offset", type=click.IntRange(0), help="The first offset of a hanging transaction.")
@yes_option
@dry_run_option
@server_option
def abort(
    transactional_id: str | None,
    *,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    yes: bool,
    dry_run: bool,
    server: str,
) -> None:
    """Abort the open transaction of TRANSACTIONAL_ID and fence its producer.

    A hanging transaction is open in a partition but unknown to its coordinator. To abort it, specify --topic,
    --partition and --start-offset as shown by `find-hanging`.
    """
    if transactional_id is not None and (topic, partition, start_offset) == (None, None, None):
        _abort_by_coordinator(transactional_id, yes=yes, dry_run=dry_run, server=server)
    elif transactional_id is None and topic is not None and partition is not None and start_offset is not None:
        target = TopicPartition(topic, partition)
        _abort_in_partition(target, start_offset, yes=yes, dry_run=dry_run, server=server)
    else:
        raise click.UsageError("specify either TRANSACTIONAL_ID, or all of --topic, --partition and --start-offset")


@transaction.command("find-hanging")
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only in this topic; repeatable.")
@click.option(
    "--older-than",
    type=DURATION,
    default="15m",
    show_default=True,
    metavar="DURATION",
    help="Only transactions without a write for this long.",
)
@server_option
@output_option
def find_hanging(topics: Sequence[str], older_than: int, server: str, output: str | None) -> None:
    """Find transactions that are open in a partition but that no coordinator will complete."""

    async def work(cluster: Cluster) -> Sequence[OpenTransaction]:
        admin = TopicAdmin(cluster)
        views = [await admin.describe(name) for name in topics] if topics else await admin.list()
        targets = [TopicPartition(view.name, partition.partition) for view in views for partition in view.partitions]
        return await TransactionAdmin(cluster).find_hanging(targets, older_than)

    rows = [
        {
            **found.target._asdict(),
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "coordinator_epoch": found.coordinator_epoch,
            "start_offset": found.start_offset,
            "last_written": local_time(found.last_timestamp_ms),
        }
        for found in with_cluster(server, work)
    ]
    print_rows(rows, _HANGING_COLUMNS, output)
    if rows:
        print_status("abort one with `headrace transaction abort --topic T --partition P --start-offset N`")


def _abort_by_coordinator(transactional_id: str, *, yes: bool, dry_run: bool, server: str) -> None:
    confirm(f"Fence the producer of {transactional_id} and abort its open transaction?", yes or dry_run)

    async def work(cluster: Cluster) -> TransactionView:
        admin = TransactionAdmin(cluster)
        return await (admin.describe(transactional_id) if dry_run else admin.abort(transactional_id))

    view = with_cluster(server, work)
    producer = f"producer {view.producer_id} with epoch {view.producer_epoch}"
    what = f"{view.state}, {counted(len(view.partitions), 'partition')}"
    print_status(f"transaction {transactional_id} ({what}): {producer} {'would be' if dry_run else 'is'} fenced")


def _abort_in_partition(target: TopicPartition, start_offset: int, *, yes: bool, dry_run: bool, server: str) -> None:
    confirm(f"Abort the transaction that begins at offset {start_offset} of {target}?", yes or dry_run)

    async def work(cluster: Cluster) -> OpenTransaction:
        admin = TransactionAdmin(cluster)
        for found in await admin.find_open([target]):
            if found.start_offset == start_offset:
                await (admin.check_hanging(found) if dry_run else admin.end_hanging(found))
                return found
        raise CommandFailed(
            f"no open transaction begins at offset {start_offset} of {target}; "
            "`headrace transaction find-hanging` lists hanging transactions"
        )

    found = with_cluster(server, work)
    verdict = "would be aborted" if dry_run else "was aborted"
    print_status(f"the transaction of producer {found.producer_id} at offset {start_offset} of {target} {verdict}")


def _print_details(
    summary: Mapping[str, Any], name: str, rows: Sequence[Row], columns: Sequence[str], output: str | None
) -> None:
    """Print a summary and the table of its parts; JSON has the parts in the field `name`."""
    if wants_json(output):
        echo(to_json({**summary, name: rows}))
        return
    for key, value in summary.items():
        echo(f"{key.replace('_', ' '):<17} {'-' if value is None else value}")
    if rows:
        echo()
        print_table(rows, columns)
