"""`headrace topic ...`: list, create, describe, alter, trim and delete topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from headrace.cli.cluster.reassign import MOVE_COLUMNS, Reassignments, move_rows, start_moves, summarize_moves
from headrace.cli.cluster.replication import plan_topic_resize
from headrace.cli.cluster_client import with_cluster
from headrace.cli.completion import TOPIC
from headrace.cli.failure import FAILED
from headrace.cli.options import confirm, dry_run_option, parse_settings, server_option, yes_option
from headrace.cli.output import counted, echo, output_option, print_rows, print_status, print_table, to_json, wants_json
from headrace.cli.start_position import log_bounds
from headrace.client.admin.cluster_admin import MIN_INSYNC, ClusterAdmin, PartitionErrors, PartitionReplicas
from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.client.admin.topic_admin import HIGH_WATERMARK, Config, NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicPartition, TopicView
from headrace.model.errors import UnknownTopicOrPartition
from headrace.model.names import dead_letter_topic


@click.group()
def topic() -> None:
    """List, create, describe, alter, trim and delete topics."""


@topic.command("list")
@click.option("--internal", is_flag=True, help="Include internal topics.")
@server_option
@output_option
def list_topics(server: str, internal: bool, output: str | None) -> None:
    """List topics."""
    topics = with_cluster(server, lambda cluster: TopicAdmin(cluster).list())
    rows = [_topic_row(view) for view in topics if internal or not view.internal]
    columns = ("topic", "partitions", "replicas")
    print_rows(rows, (*columns, "internal") if internal else columns, output)


@topic.command()
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(1), help="Default: the broker's num.partitions.")
@click.option("-r", "--replication-factor", type=click.IntRange(1), help="Default: default.replication.factor.")
@click.option("-c", "--config", "configs", multiple=True, metavar="NAME=VALUE", help="A topic config; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic already exists.")
@dry_run_option
@server_option
def create(
    name: str,
    *,
    partitions: int | None,
    replication_factor: int | None,
    configs: Sequence[str],
    if_not_exists: bool,
    dry_run: bool,
    server: str,
) -> None:
    """Create the topic NAME."""
    new_topic = NewTopic(name, partitions or -1, replication_factor or -1, parse_settings(configs))

    async def work(cluster: Cluster) -> bool:
        admin = TopicAdmin(cluster)
        if if_not_exists and any(view.name == name for view in await admin.list()):
            return False
        await admin.create(new_topic, validate_only=dry_run)
        return True

    done = with_cluster(server, work)
    print_status(f"topic {name} {'exists' if not done else 'could be created' if dry_run else 'created'}")


@topic.command()
@click.argument("name", type=TOPIC)
@click.option("--configs", is_flag=True, help="Show all configs, including defaults.")
@server_option
@output_option
def describe(name: str, configs: bool, server: str, output: str | None) -> None:
    """Show partitions, offsets and configs of the topic NAME."""

    async def work(
        cluster: Cluster,
    ) -> tuple[TopicView, Sequence[Config], Mapping[int, int], list[dict[str, Any]]]:
        admin = TopicAdmin(cluster)
        view = await admin.describe(name)
        sizes = await admin.sizes(name)
        targets = [TopicPartition(name, partition.partition) for partition in view.partitions]
        starts, ends = await log_bounds(cluster, targets)
        rows = [
            {
                "partition": partition.partition,
                "leader": partition.leader_id,
                "epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "in_sync": list(partition.in_sync),
                "start": starts[target],
                "end": ends[target],
                "size_bytes": sizes.get(partition.partition, 0),
            }
            for target, partition in zip(targets, view.partitions, strict=True)
        ]
        return view, await admin.configs(name), sizes, rows

    view, settings, sizes, partitions = with_cluster(server, work)
    shown = [config for config in settings if configs or not config.is_default]
    config_rows = [{"config": c.name, "value": c.value, "default": c.is_default} for c in shown]
    if wants_json(output):
        row = _topic_row(view) | {
            "topic_id": str(view.topic_id),
            "size_bytes": sum(sizes.values()),
            "partitions": partitions,
            "configs": {config.name: config.value for config in shown},
        }
        echo(to_json(row))
        return
    echo(f"topic {view.name}  id {view.topic_id}  {counted(len(view.partitions), 'partition')}", "")
    print_table(partitions, ("partition", "leader", "epoch", "replicas", "in_sync", "start", "end", "size_bytes"))
    if config_rows:
        echo()
        print_table(config_rows, ("config", "value", "default") if configs else ("config", "value"))


@topic.command()
@click.argument("name", type=TOPIC)
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Set a config; repeatable.")
@click.option("--unset", multiple=True, metavar="NAME", help="Reset a config to its default; repeatable.")
@click.option("-r", "--replicas", type=click.IntRange(1), metavar="N", help="Change the number of replicas to N.")
@click.option("--wait", is_flag=True, help="Wait until all partitions have N replicas.")
@dry_run_option
@server_option
@output_option
def alter(
    name: str,
    *,
    changes: Sequence[str],
    unset: Sequence[str],
    replicas: int | None,
    wait: bool,
    dry_run: bool,
    server: str,
    output: str | None,
) -> int:
    """Change configs of the topic NAME, or its number of replicas.

    New replicas are in sync before superfluous ones are removed. Replicas on brokers that are down or draining are
    replaced or removed first.
    """
    if not changes and not unset and replicas is None:
        raise click.UsageError("nothing to change: specify --set NAME=VALUE, --unset NAME or --replicas N")
    if wait and replicas is None:
        raise click.UsageError("--wait requires --replicas")
    set_to = parse_settings(changes)

    async def work(cluster: Cluster) -> tuple[list[dict[str, Any]], PartitionErrors]:
        admin = ClusterAdmin(cluster)
        assignments: Sequence[PartitionReplicas] = ()
        moves: Reassignments = {}
        if replicas is not None:
            min_insync = set_to.get(MIN_INSYNC, "")
            assignments, moves = await plan_topic_resize(
                admin, name, replicas, min_insync=int(min_insync) if min_insync.isdecimal() else None
            )
        if changes or unset:
            await TopicAdmin(cluster).alter_configs(name, set_to=set_to, back_to_default=unset, validate_only=dry_run)
            print_status(f"topic {name} {'could be altered' if dry_run else 'altered'}")
        errors = {} if dry_run else await start_moves(admin, moves, wait=wait)
        return move_rows({one.target: one for one in assignments}, moves, errors, dry_run=dry_run), errors

    rows, errors = with_cluster(server, work)
    if replicas is not None:
        print_rows(rows, MOVE_COLUMNS, output)
        print_status(summarize_moves(len(rows), len(errors), wait=wait, dry_run=dry_run))
    return FAILED if errors else 0


@topic.command()
@click.argument("names", type=TOPIC, nargs=-1, required=True, metavar="NAME...")
@yes_option
@dry_run_option
@server_option
def delete(names: Sequence[str], yes: bool, dry_run: bool, server: str) -> None:
    """Delete topics, all their records, and the dead letters that the broker kept of them.

    NAME.dlq stays if a client created it. To keep dead letters, send them to another topic first: headrace dlq redrive
    NAME --all --to OTHER.
    """
    confirm(f"Delete {', '.join(names)} with all records and dead letters?", yes or dry_run)

    async def work(cluster: Cluster) -> None:
        admin = TopicAdmin(cluster)
        deleted: set[str] = set()
        for name in names:
            if name in deleted:
                continue
            await admin.describe(name)
            if dry_run:
                print_status(f"topic {name} would be deleted")
                continue
            letters = dead_letter_topic(name)
            had_letters = await _exists(admin, letters)
            await SubscriptionAdmin(cluster).clear_group_configs(name)
            await admin.delete(name)
            print_status(f"topic {name} deleted")
            if had_letters and not await _exists(admin, letters):
                deleted.add(letters)
                print_status(f"topic {letters} deleted with it")

    with_cluster(server, work)


async def _exists(admin: TopicAdmin, name: str) -> bool:
    try:
        await admin.describe(name)
    except UnknownTopicOrPartition:
        return False
    return True


@topic.command("add-partitions")
@click.argument("name", type=TOPIC)
@click.argument("total", type=click.IntRange(1))
@yes_option
@dry_run_option
@server_option
def add_partitions(name: str, total: int, yes: bool, dry_run: bool, server: str) -> None:
    """Increase the partitions of the topic NAME to TOTAL. Keys may then map to other partitions."""
    confirm(f"Increase {name} to {counted(total, 'partition')}? This cannot be undone.", yes or dry_run)
    with_cluster(server, lambda cluster: TopicAdmin(cluster).add_partitions(name, total, validate_only=dry_run))
    print_status(f"topic {name} {'could be increased' if dry_run else 'increased'} to {total} partitions")


@topic.command()
@click.argument("name", type=TOPIC)
@click.option("-p", "--partition", type=click.IntRange(0), help="Only this partition.")
@click.option("-b", "--before", type=click.IntRange(0), help="Delete records before this offset; default: all.")
@yes_option
@dry_run_option
@server_option
@output_option
def trim(
    name: str,
    *,
    partition: int | None,
    before: int | None,
    yes: bool,
    dry_run: bool,
    server: str,
    output: str | None,
) -> None:
    """Delete the oldest records of the topic NAME."""
    what = "all records" if before is None else f"records before offset {before}"
    confirm(f"Delete {what} of {name}?", yes or dry_run)

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        view = await TopicAdmin(cluster).describe(name)
        chosen = range(len(view.partitions)) if partition is None else [partition]
        targets = [TopicPartition(name, number) for number in chosen]
        starts, ends = await log_bounds(cluster, targets)
        new_starts = {t: min(ends[t], max(starts[t], ends[t] if before is None else before)) for t in targets}
        if not dry_run:
            requested = dict.fromkeys(targets, HIGH_WATERMARK) if before is None else new_starts
            new_starts = await TopicAdmin(cluster).trim(requested)
        return [
            {
                "topic": name,
                "partition": target.partition,
                "start_before": starts[target],
                "start": new_starts[target],
                "deleted": new_starts[target] - starts[target],
            }
            for target in targets
        ]

    rows = with_cluster(server, work)
    if dry_run:
        print_status("no changes made (--dry-run)")
    print_rows(rows, ("partition", "start_before", "start", "deleted"), output)


def _topic_row(view: TopicView) -> dict[str, Any]:
    return {
        "topic": view.name,
        "partitions": len(view.partitions),
        "replicas": max((len(partition.replicas) for partition in view.partitions), default=0),
        "internal": view.internal,
    }
