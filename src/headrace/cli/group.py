"""`headrace group ...`: list, describe, reset and delete consumer groups.

- `reset` only shows the changes unless --execute is given.
- The coordinator rejects the reset of a group with members, because they would continue from their current positions
  and overwrite the new offsets.
- An offset outside the log is moved to the nearest end of the log, which the row reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from headrace.cli.cluster_client import with_cluster
from headrace.cli.completion import GROUP
from headrace.cli.options import confirm, dry_run_option, server_option, yes_option
from headrace.cli.output import counted, echo, output_option, print_rows, print_status, print_table, to_json, wants_json
from headrace.cli.start_position import StartPosition, parse_ago, parse_start_position, resolve_offsets
from headrace.client.admin.group_admin import GroupAdmin, GroupView, PartitionLag
from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicPartition
from headrace.runtime.clock import Clock, SystemClock

_COLUMNS = ("topic", "partition", "now", "new", "lag", "remark")


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """The current and the new offset of a group in one partition; `new` is None if it cannot be reset."""

    before: PartitionLag
    new: int | None
    remark: str | None

    def row(self) -> dict[str, Any]:
        before = self.before
        at = before.committed if self.new is None else self.new
        return {
            **before.target._asdict(),
            "now": before.committed,
            "new": self.new,
            "start": before.start,
            "end": before.end,
            "lag": None if at is None else max(0, before.end - at),
            "remark": self.remark,
        }


@click.command()
@click.argument("name", type=GROUP, metavar="GROUP")
@click.option(
    "--to", "to", metavar="POSITION", help="earliest, latest, a time (ISO 8601 or ms), or a duration: 2h-ago."
)
@click.option("--shift", type=int, metavar="N", help="Shift forward by N records, or back if negative.")
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="Reset to this offset.")
@click.option("--from-file", type=click.File("r"), metavar="FILE", help="Read lines TOPIC,PARTITION,OFFSET from FILE.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:P,...]", help="Only these partitions; repeatable.")
@click.option("--all-topics", is_flag=True, help="All partitions with committed offsets.")
@click.option("--execute", is_flag=True, help="Commit the new offsets; default: only show them.")
@click.option("--export", is_flag=True, help="Print lines TOPIC,PARTITION,OFFSET for --from-file.")
@server_option
@output_option
def reset(
    name: str,
    *,
    to: str | None,
    shift: int | None,
    to_offset: int | None,
    from_file: Iterable[str] | None,
    topics: Sequence[str],
    all_topics: bool,
    execute: bool,
    export: bool,
    server: str,
    output: str | None,
) -> None:
    """Reset the committed offsets of GROUP.

    Only shows the changes unless --execute is given. To back up the current offsets:
    `headrace group reset GROUP --all-topics --shift 0 --export > offsets.csv`.
    """
    if sum(option is not None for option in (to, shift, to_offset, from_file)) != 1:
        raise click.UsageError("specify exactly one of --to, --shift, --to-offset and --from-file")
    if (from_file is not None) + bool(topics) + all_topics != 1:
        raise click.UsageError(
            "specify the partitions with --topic TOPIC[:P,...] or --all-topics, unless --from-file is given"
        )
    offsets = None if from_file is None else read_offsets(from_file)
    chosen = [parse_partitions(text) for text in topics]
    position = None if to is None else parse_reset_position(to)

    async def work(cluster: Cluster) -> Sequence[OffsetReset]:
        admin = GroupAdmin(cluster)
        await admin.check_empty(name)
        targets = None if all_topics else set(offsets) if offsets is not None else await _targets(cluster, chosen)
        before = await admin.positions(name, targets)
        if position is not None:
            resolved = await resolve_offsets(cluster, [lag.target for lag in before], position)
            moves = plan_resets(before, resolved)
        else:
            moves = plan_resets(before, offsets or _target_offsets(before, shift, to_offset))
        if execute:
            await admin.move(name, {move.before.target: move.new for move in moves if move.new is not None})
        return moves

    moves = with_cluster(server, work)
    if not export:
        print_rows([move.row() for move in moves], _COLUMNS, output)
    for move in moves if export else ():
        if move.new is not None:
            echo(f"{move.before.target.topic},{move.before.target.partition},{move.new}")
    offsets_changed = counted(sum(move.new is not None for move in moves), "offset")
    print_status(
        f"group {name}: {offsets_changed} committed" if execute else "no changes made; use --execute to commit them"
    )


def plan_resets(before: Sequence[PartitionLag], offsets: Mapping[TopicPartition, int]) -> Sequence[OffsetReset]:
    """Plan the moves to these offsets, limited to the log; a partition without a target offset is not changed."""
    return [_clamped_reset(lag, offsets.get(lag.target)) for lag in before]


def _clamped_reset(lag: PartitionLag, target: int | None) -> OffsetReset:
    if target is None:
        return OffsetReset(lag, None, "no committed offset to shift")
    if target < lag.start:
        return OffsetReset(lag, lag.start, f"{target} is before the start of the log")
    if target > lag.end:
        return OffsetReset(lag, lag.end, f"{target} is after the end of the log")
    return OffsetReset(lag, target, None)


def _target_offsets(
    before: Sequence[PartitionLag], shift: int | None, to_offset: int | None
) -> dict[TopicPartition, int]:
    if to_offset is not None:
        return {lag.target: to_offset for lag in before}
    assert shift is not None
    return {lag.target: lag.committed + shift for lag in before if lag.committed is not None}


def parse_reset_position(text: str, clock: Clock | None = None) -> StartPosition:
    """Parse the value of `--to`, or raise a usage error."""
    try:
        time_ms = parse_ago(text, (clock or SystemClock()).now_ms())
        if time_ms is not None:
            return StartPosition("time", time_ms)
        return parse_start_position(text if text in ("earliest", "latest") else f"@{text}")
    except ValueError as error:
        raise click.UsageError(f"--to: {error}") from None


def parse_partitions(text: str) -> tuple[str, Set[int] | None]:
    """Parse TOPIC[:P,...] into the topic and its partitions, which are None for all of them."""
    topic, colon, listed = text.partition(":")
    numbers = listed.split(",") if colon else []
    if not topic or not all(number.isascii() and number.isdigit() for number in numbers):
        raise click.UsageError(f"--topic: {text!r} is invalid; write TOPIC or TOPIC:P,P")
    return topic, {int(number) for number in numbers} if colon else None


def read_offsets(lines: Iterable[str]) -> dict[TopicPartition, int]:
    """Parse lines TOPIC,PARTITION,OFFSET, the format of kafka-consumer-groups."""
    offsets: dict[TopicPartition, int] = {}
    for number, line in enumerate(lines, 1):
        fields = [field.strip().strip('"') for field in line.split(",")]
        if fields == [""]:
            continue
        if len(fields) != 3 or not fields[0] or not all(f.isascii() and f.isdigit() for f in fields[1:]):
            raise click.UsageError(f"--from-file: line {number} is not TOPIC,PARTITION,OFFSET: {line.strip()!r}")
        offsets[TopicPartition(fields[0], int(fields[1]))] = int(fields[2])
    if not offsets:
        raise click.UsageError("--from-file: the file contains no offsets")
    return offsets


async def _targets(cluster: Cluster, chosen: Sequence[tuple[str, Set[int] | None]]) -> Set[TopicPartition]:
    targets: set[TopicPartition] = set()
    for topic, numbers in chosen:
        view = await cluster.call_with_retries(partial(cluster.topic, topic))
        chosen_numbers = range(len(view.partitions)) if numbers is None else numbers
        targets.update(TopicPartition(topic, number) for number in chosen_numbers)
    return targets


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
@click.argument("name", type=GROUP)
@server_option
@output_option
def describe(name: str, server: str, output: str | None) -> None:
    """Show state, members and lag of the group NAME."""

    async def work(cluster: Cluster) -> tuple[GroupView, Sequence[PartitionLag]]:
        admin = GroupAdmin(cluster)
        return await admin.describe(name), await admin.lag(name)

    view, lags = with_cluster(server, work)
    partitions = [_lag_row(lag) for lag in lags]
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
        echo(to_json(summary | {"members": members, "partitions": partitions}))
        return
    echo("  ".join(f"{key} {value or '-'}" for key, value in summary.items()))
    for rows, columns in ((members, ("member", "client", "host", "partitions")), (partitions, _LAG_COLUMNS)):
        if rows:
            echo()
            print_table(rows, columns)


@group.command()
@click.argument("name", type=GROUP)
@click.option("--watch", type=click.FloatRange(0.1), metavar="SECONDS", help="Repeat at this interval.")
@server_option
@output_option
def lag(name: str, watch: float | None, server: str, output: str | None) -> None:
    """Show the consumer lag of the group NAME per partition."""

    async def work(cluster: Cluster) -> None:
        admin = GroupAdmin(cluster)
        while True:
            print_rows(map(_lag_row, await admin.lag(name)), _LAG_COLUMNS, output)
            if watch is None:
                return
            await asyncio.sleep(watch)
            if not wants_json(output):
                echo()

    with_cluster(server, work)


@group.command()
@click.argument("names", type=GROUP, nargs=-1, required=True, metavar="NAME...")
@yes_option
@dry_run_option
@server_option
def delete(names: Sequence[str], yes: bool, dry_run: bool, server: str) -> None:
    """Delete groups and their committed offsets."""
    confirm(f"Delete {', '.join(names)} and all committed offsets?", yes or dry_run)

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


def _lag_row(lag: PartitionLag) -> dict[str, Any]:
    return {
        **lag.target._asdict(),
        "committed": lag.committed,
        "start": lag.start,
        "end": lag.end,
        "lag": lag.lag,
        "member": None if lag.member is None else lag.member.member_id,
        "host": None if lag.member is None else lag.member.host,
    }
