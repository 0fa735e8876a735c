"""`headrace group ...`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import click

from headrace.cli.group_reset import reset
from headrace.cli.output import echo, output_option, print_rows, print_status, print_table, to_json, wants_json
from headrace.cli.session import confirm, dry_run_option, server_option, with_cluster, yes_option
from headrace.client.admin.group_admin import GroupAdmin, GroupView, PartitionLag
from headrace.client.cluster import Cluster

_LAG_COLUMNS = ("topic", "partition", "committed", "end", "lag", "member", "host")


@click.group()
def group() -> None:
    """List, describe, reset and delete consumer groups; show their lag."""


group.add_command(reset)


@group.command("list")
@server_option
@output_option
def list_groups(server: str, output: str | None) -> None:
    """List groups."""
    groups = with_cluster(server, lambda cluster: GroupAdmin(cluster).list())
    rows = [{"group": g.group, "state": g.state, "protocol": g.protocol_type, "type": g.kind} for g in groups]
    print_rows(rows, ("group", "state", "protocol", "type"), output)


@group.command()
@click.argument("name")
@server_option
@output_option
def describe(name: str, server: str, output: str | None) -> None:
    """Show state, members and lag of the group NAME."""

    async def work(cluster: Cluster) -> tuple[GroupView, Sequence[PartitionLag]]:
        admin = GroupAdmin(cluster)
        return await admin.describe(name), await admin.lag(name)

    view, lags = with_cluster(server, work)
    members = [
        {
            "member": member.member_id,
            "instance": member.instance_id,
            "client": member.client_id,
            "host": member.host,
            "partitions": [str(target) for target in member.partitions],
        }
        for member in view.members
    ]
    summary: dict[str, Any] = {
        "group": view.group,
        "state": view.state,
        "assignor": view.assignor,
        "coordinator": view.coordinator,
        "lag": sum(lag.lag for lag in lags),
    }
    if wants_json(output):
        echo(to_json(summary | {"members": members, "partitions": [_lag_row(lag) for lag in lags]}))
        return
    echo("  ".join(f"{key} {value or '-'}" for key, value in summary.items()))
    for rows, columns in ((members, ("member", "client", "host", "partitions")), (_rows(lags), _LAG_COLUMNS)):
        if rows:
            echo()
            print_table(rows, columns)


@group.command()
@click.argument("name")
@click.option("--watch", type=click.FloatRange(0.1), metavar="SECONDS", help="Repeat at this interval.")
@server_option
@output_option
def lag(name: str, watch: float | None, server: str, output: str | None) -> None:
    """Show the consumer lag of the group NAME per partition."""

    async def work(cluster: Cluster) -> None:
        admin = GroupAdmin(cluster)
        print_rows(_rows(await admin.lag(name)), _LAG_COLUMNS, output)
        while watch is not None:
            await asyncio.sleep(watch)
            if not wants_json(output):
                echo()
            print_rows(_rows(await admin.lag(name)), _LAG_COLUMNS, output)

    with_cluster(server, work)


@group.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@yes_option
@dry_run_option
@server_option
def delete(names: Sequence[str], yes: bool, dry_run: bool, server: str) -> None:
    """Delete groups and their committed offsets."""
    if not dry_run:
        confirm(f"Delete {', '.join(names)} and all committed offsets?", yes)

    async def work(cluster: Cluster) -> None:
        admin = GroupAdmin(cluster)
        for name in names:
            if dry_run:
                view = await admin.describe(name)
                verdict = "would be deleted" if not view.members else "has members and could not be deleted"
                print_status(f"group {name} {verdict}")
            else:
                await admin.delete(name)
                print_status(f"group {name} deleted")

    with_cluster(server, work)


def _rows(lags: Sequence[PartitionLag]) -> list[dict[str, Any]]:
    return [_lag_row(lag) for lag in lags]


def _lag_row(lag: PartitionLag) -> dict[str, Any]:
    return {
        "topic": lag.target.topic,
        "partition": lag.target.partition,
        "committed": lag.committed,
        "start": lag.start,
        "end": lag.end,
        "lag": lag.lag,
        "member": None if lag.member is None else lag.member.member_id,
        "host": None if lag.member is None else lag.member.host,
    }
