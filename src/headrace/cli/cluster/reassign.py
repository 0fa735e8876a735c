"""`headrace cluster reassign`: plan moves of replicas, execute them, show their progress.

- A plan is read from a file in Kafka's format, or computed to spread partitions evenly over brokers.
- The old replicas are removed only after the new ones are in sync, so a cancelled reassignment loses no data.
- Ctrl-C ends the wait for an operation, not the operation.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import click
import msgspec
from click.core import ParameterSource

from headrace.cli.cluster_client import with_cluster
from headrace.cli.completion import TOPIC
from headrace.cli.failure import FAILED, CommandFailed
from headrace.cli.options import ParsedType, dry_run_option, server_option
from headrace.cli.output import counted, output_option, print_rows, print_status
from headrace.client.admin.cluster_admin import (
    BrokerView,
    ClusterAdmin,
    ClusterMembers,
    PartitionErrors,
    PartitionReplicas,
)
from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicPartition
from headrace.machines.controller.placement import balance_replicas
from headrace.model.errors import InvalidReplicationFactor
from headrace.model.names import owner_of
from headrace.model.registry_records import NO_EPOCH, BrokerRecord

Reassignments = Mapping[TopicPartition, Sequence[int]]


class PlannedPartition(msgspec.Struct):
    topic: str
    partition: int
    replicas: list[int]


class ReassignmentPlan(msgspec.Struct):
    """The format of kafka-reassign-partitions. `log_dirs` is ignored, because a broker has one data folder."""

    version: int
    partitions: list[PlannedPartition]


def read_plan(data: bytes) -> Reassignments:
    """Return the replicas per partition, or raise ValueError with a message for the user."""
    try:
        plan = msgspec.json.decode(data, type=ReassignmentPlan)
    except msgspec.MsgspecError as error:
        raise ValueError(f"it is not a plan in the format of kafka-reassign-partitions: {error}") from None
    if plan.version != 1:
        raise ValueError(f"its version is {plan.version}; only version 1 is supported")
    moves = {TopicPartition(planned.topic, planned.partition): planned.replicas for planned in plan.partitions}
    if len(moves) != len(plan.partitions):
        raise ValueError("it contains a partition twice")
    return moves


def spread_over(assignments: Iterable[PartitionReplicas], brokers: Iterable[BrokerView]) -> Reassignments:
    """Return a small set of moves that spreads these partitions evenly over exactly these brokers."""
    current = {assignment.target: target_replicas(assignment) for assignment in assignments}
    return balance_replicas(current, broker_records(brokers))


def broker_records(brokers: Iterable[BrokerView]) -> dict[int, BrokerRecord]:
    """Return the brokers as the placement needs them."""
    return {
        broker.node_id: BrokerRecord(
            node_id=broker.node_id,
            epoch=NO_EPOCH,
            host=broker.address.host,
            port=broker.address.port,
            rack=broker.rack,
        )
        for broker in brokers
    }


def target_replicas(assignment: PartitionReplicas) -> tuple[int, ...]:
    """Return the replicas of a partition after the reassignment in progress."""
    return tuple(node_id for node_id in assignment.replicas if node_id not in assignment.removing)


_POLL_SECONDS = 0.5


async def wait_until_none(count_remaining: Callable[[], Awaitable[int]], what: str) -> None:
    """Wait until `count_remaining` returns 0, with a progress bar on a terminal."""
    remaining = total = await count_remaining()
    try:
        with click.progressbar(length=total, label=what, file=sys.stderr) as bar:
            while remaining:
                await asyncio.sleep(_POLL_SECONDS)
                remaining = await count_remaining()
                bar.update(max(0, total - remaining - bar.pos))  # the total may grow while we wait
    except asyncio.CancelledError:
        print_status("the operation continues; `headrace cluster reassign status` shows its progress")
        raise


_BYTES_PER_MEGABYTE = 1_000_000
_REMOVE_THROTTLE = "remove the throttle afterwards with `headrace cluster reassign throttle off`"


def _parse_brokers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of broker ids such as 1,2,3") from None


def _parse_rate(text: str) -> int:
    """Convert megabytes per second to bytes per second; `off` is 0."""
    if text == "off":
        return 0
    try:
        rate = int(float(text) * _BYTES_PER_MEGABYTE)
    except (ValueError, OverflowError):
        rate = 0
    if rate < 1:
        raise ValueError(f"{text!r} is not a rate in MB/s such as 20 or 0.5")
    return rate


_BROKERS = ParsedType("brokers", _parse_brokers)
_RATE = ParsedType("rate", _parse_rate)


@click.group(invoke_without_command=True)
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only partitions of this topic; repeatable.")
@click.option("--to", type=_BROKERS, metavar="ID,ID,...", help="Spread the topics over exactly these brokers.")
@click.option("--add-broker", "added", multiple=True, type=int, metavar="ID", help="Move replicas to it; repeatable.")
@click.option(
    "--remove-broker", "removed", multiple=True, type=int, metavar="ID", help="Move all replicas off it; repeatable."
)
@click.option("--plan", type=click.File("rb"), metavar="FILE", help="A kafka-reassign-partitions plan; - for stdin.")
@click.option("--throttle", type=_RATE, metavar="MB/S", help="Limit the replication rate of each broker.")
@click.option("--wait", is_flag=True, help="Wait until all moves have completed, then remove the throttle.")
@dry_run_option
@server_option
@output_option
@click.pass_context
def reassign(
    ctx: click.Context,
    *,
    topics: Sequence[str],
    to: tuple[int, ...] | None,
    added: Sequence[int],
    removed: Sequence[int],
    plan: BinaryIO | None,
    throttle: int | None,
    wait: bool,
    dry_run: bool,
    server: str,
    output: str | None,
) -> int:
    """Move partitions to other brokers.

    \b
    headrace cluster reassign --add-broker 4 --dry-run     show what would move to the new broker
    headrace cluster reassign --topic orders --to 1,2,3    spread one topic over these brokers
    headrace cluster reassign --plan moves.json --wait     execute a kafka-reassign-partitions plan
    """
    if ctx.invoked_subcommand is not None:
        if any(ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in ctx.params):
            raise click.UsageError(
                f"put options after {ctx.invoked_subcommand}; it does not accept those of reassign itself"
            )
        return 0
    if [plan is not None, to is not None, bool(added or removed)].count(True) != 1:
        raise click.UsageError("specify one of --plan, --to with --topic, or --add-broker/--remove-broker")
    if to is not None and not topics:
        raise click.UsageError("--to requires --topic; to spread all topics over all brokers use --add-broker")

    async def work(cluster: Cluster) -> tuple[list[dict[str, Any]], PartitionErrors]:
        admin = ClusterAdmin(cluster)
        assignments = {assignment.target: assignment for assignment in await admin.places(topics)}
        if plan is not None:
            moves = _checked_moves(_read(plan), assignments.keys(), topics)
        else:
            members = await admin.members()
            nodes = to if to is not None else _target_brokers(members, assignments.values(), added, removed)
            own = [assignment for target, assignment in assignments.items() if _is_movable(target, topics)]
            moves = _spread(own, [_available_broker(members, node_id) for node_id in nodes])
        errors = {} if dry_run else await start_moves(admin, moves, throttle, wait=wait)
        return move_rows(assignments, moves, errors, dry_run=dry_run), errors

    rows, errors = with_cluster(server, work)
    print_rows(rows, MOVE_COLUMNS, output)
    print_status(summarize_moves(len(rows), len(errors), throttle, wait=wait, dry_run=dry_run))
    return FAILED if errors else 0


MOVE_COLUMNS = ("topic", "partition", "replicas", "target", "result")


def move_rows(
    assignments: Mapping[TopicPartition, PartitionReplicas],
    moves: Reassignments,
    errors: PartitionErrors,
    *,
    dry_run: bool,
) -> list[dict[str, Any]]:
    results = {target: error.message for target, error in errors.items()}
    return [
        {
            **target._asdict(),
            "replicas": target_replicas(assignments[target]),
            "target": moves[target],
            "result": results.get(target, "not begun" if dry_run else "begun"),
        }
        for target in sorted(moves)
    ]


@reassign.command()
@server_option
@output_option
def status(server: str, output: str | None) -> None:
    """Show the moves in progress, and how many bytes have been copied."""
    rows = with_cluster(server, _status)
    print_rows(rows, ("topic", "partition", "replicas", "adding", "removing", "copied_bytes", "size_bytes"), output)
    if not rows:
        print_status("no partition is moving")


@reassign.command()
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only partitions of this topic; repeatable.")
@server_option
def cancel(topics: Sequence[str], server: str) -> int:
    """Cancel the moves in progress: partitions keep their old replicas, and the new ones are deleted."""

    async def work(cluster: Cluster) -> tuple[int, PartitionErrors]:
        admin = ClusterAdmin(cluster)
        moving = [
            target
            for target in await admin.moves()
            if _is_movable(target, topics) and (not topics or target.topic in topics)
        ]
        return len(moving), await admin.move(dict.fromkeys(moving))

    count, errors = with_cluster(server, work)
    for target, error in errors.items():
        print_status(f"{target}: {error.message}")
    print_status(f"{counted(count - len(errors), 'move')} cancelled")
    return FAILED if errors else 0


@reassign.command("throttle")
@click.argument("rate", type=_RATE, metavar="MB/S|off")
@server_option
def set_throttle(rate: int, server: str) -> None:
    """Limit the rate at which each broker replicates to out-of-sync replicas; `off` removes the limit."""
    with_cluster(server, lambda cluster: ClusterAdmin(cluster).throttle(rate or None))
    print_status(f"throttle set to {rate / _BYTES_PER_MEGABYTE:g} MB/s on every broker" if rate else "throttle removed")


async def start_moves(
    admin: ClusterAdmin, moves: Reassignments, throttle: int | None = None, *, wait: bool
) -> PartitionErrors:
    """Start these moves and return the errors; with `wait`, return when all others have completed."""
    if not moves:
        return {}
    if throttle is not None:
        await admin.throttle(throttle or None)
    errors = await admin.move(moves)
    if wait:
        await _wait(admin, {target: moves[target] for target in moves if target not in errors})
        if throttle:
            await admin.throttle(None)
    return errors


async def _wait(admin: ClusterAdmin, moves: Reassignments) -> None:
    async def count_remaining() -> int:
        return len((await admin.moves()).keys() & moves.keys())

    await wait_until_none(count_remaining, "partitions moving")
    current = {
        assignment.target: assignment.replicas for assignment in await admin.places({target.topic for target in moves})
    }
    unmoved = [target for target, replicas in moves.items() if current.get(target) != tuple(replicas)]
    if unmoved:
        raise CommandFailed(
            f"{len(unmoved)} of {len(moves)} partitions do not have their target replicas, for example {unmoved[0]}: "
            "the moves were cancelled or changed meanwhile; `headrace cluster partitions` shows the replicas"
        )


async def _status(cluster: Cluster) -> list[dict[str, Any]]:
    admin = ClusterAdmin(cluster)
    moving = [assignment for assignment in await admin.places() if assignment.is_moving]
    members = await admin.members()
    nodes = {
        node_id for assignment in moving for node_id in (assignment.leader, *assignment.adding)
    } & members.brokers.keys()
    targets = [assignment.target for assignment in moving]
    sizes = {node_id: await admin.sizes(node_id, targets) for node_id in sorted(nodes)}

    def size(node_id: int, target: TopicPartition) -> int:
        return sizes.get(node_id, {}).get(target, 0)

    return [
        {
            **assignment.target._asdict(),
            "replicas": assignment.replicas,
            "adding": assignment.adding,
            "removing": assignment.removing,
            "copied_bytes": sum(size(node_id, assignment.target) for node_id in assignment.adding),
            "size_bytes": size(assignment.leader, assignment.target) * len(assignment.adding),
        }
        for assignment in moving
    ]


def _read(plan: BinaryIO) -> Reassignments:
    try:
        return read_plan(plan.read())
    except ValueError as error:
        raise CommandFailed(f"{plan.name} cannot be used: {error}") from None


def _is_movable(target: TopicPartition, topics: Sequence[str]) -> bool:
    """Leave out co-located topics, which follow their owner. If requested by name, the controller rejects them."""
    return owner_of(target.topic) is None or target.topic in topics


def _checked_moves(moves: Reassignments, known: Collection[TopicPartition], topics: Sequence[str]) -> Reassignments:
    chosen = {target: replicas for target, replicas in moves.items() if not topics or target.topic in topics}
    for target in chosen:
        if target not in known:
            raise CommandFailed(
                f"partition {target} does not exist; `headrace cluster partitions` lists all partitions"
            )
    return chosen


def _spread(assignments: Collection[PartitionReplicas], brokers: Collection[BrokerView]) -> Reassignments:
    try:
        return spread_over(assignments, brokers)
    except InvalidReplicationFactor:
        replicas_max = max(len(target_replicas(assignment)) for assignment in assignments)
        raise CommandFailed(
            f"{replicas_max} replicas do not fit on {counted(len(brokers), 'broker')}; "
            "add brokers, or reduce the replicas with `headrace topic alter TOPIC --replicas N`"
        ) from None


def _target_brokers(
    members: ClusterMembers, assignments: Collection[PartitionReplicas], added: Sequence[int], removed: Sequence[int]
) -> Sequence[int]:
    """Return the brokers that hold replicas, plus the added and minus the removed ones. A broker that is down may come
    back: its replicas are not moved unless it is in `removed`."""
    holding = {node_id for assignment in assignments for node_id in target_replicas(assignment)}.difference(removed)
    for node_id in sorted(holding - members.brokers.keys()):
        raise CommandFailed(
            f"broker {node_id} holds replicas but is down; start it, or move them with --remove-broker {node_id}"
        )
    staying = {node_id for node_id in holding if not members.brokers[node_id].is_draining}
    return sorted(staying.union(added).difference(removed))


def _available_broker(members: ClusterMembers, node_id: int) -> BrokerView:
    broker = members.brokers.get(node_id)
    if broker is None:
        raise CommandFailed(f"broker {node_id} is not up; `headrace cluster info` lists the brokers")
    if broker.is_draining:
        raise CommandFailed(f"broker {node_id} is draining; cancel that with `headrace cluster drain {node_id} --undo`")
    return broker


def summarize_moves(count: int, errors: int, throttle: int | None = None, *, wait: bool, dry_run: bool) -> str:
    if not count:
        return "nothing to move: all partitions have their target replicas"
    if dry_run:
        return f"{counted(count, 'partition')} would move (--dry-run)"
    if wait:
        return f"{counted(count - errors, 'partition')} moved"
    return (
        f"{counted(count - errors, 'partition')} being moved; `headrace cluster reassign status` shows the progress"
        + (f"; {_REMOVE_THROTTLE}" if throttle else "")
    )
