"""headrace cluster reassign: plan moves, carry them out, show their progress.

The old replicas are removed only after the new ones are in sync, so a cancelled reassignment loses no data.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import click
import msgspec
from click.core import ParameterSource

from headrace.cli.failure import FAILED, CommandFailed
from headrace.cli.output import output_option, print_rows, print_status
from headrace.cli.session import dry_run_option, server_option, with_cluster
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

# Plan reassignments: read a plan in Kafka's format, or spread partitions over brokers. Pure.


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


def spread_over(places: Iterable[PartitionReplicas], brokers: Iterable[BrokerView]) -> Reassignments:
    """Return a small set of moves that spreads these partitions evenly over exactly these brokers."""
    current = {place.target: target_replicas(place) for place in places}
    usable = {
        broker.node_id: BrokerRecord(
            node_id=broker.node_id,
            epoch=NO_EPOCH,
            host=broker.address.host,
            port=broker.address.port,
            rack=broker.rack,
        )
        for broker in brokers
    }
    return balance_replicas(current, usable)


def target_replicas(place: PartitionReplicas) -> tuple[int, ...]:
    """Return the replicas of a partition after the reassignment in progress."""
    return tuple(node_id for node_id in place.replicas if node_id not in place.removing)


# Wait for an operation of the cluster, with a progress bar on a terminal. Ctrl-C ends the wait, not the operation.


_POLL_SECONDS = 0.5


async def wait_until_none(left: Callable[[], Awaitable[int]], what: str) -> None:
    """Wait until `left` returns 0."""
    rest = total = await left()
    try:
        with click.progressbar(length=total, label=what, file=sys.stderr) as bar:
            while rest:
                await asyncio.sleep(_POLL_SECONDS)
                rest = await left()
                bar.update(max(0, total - rest - bar.pos))  # the total may grow while we wait
    except asyncio.CancelledError:
        print_status("the operation continues; `headrace cluster reassign status` shows its progress")
        raise


_BYTES_PER_MEGABYTE = 1_000_000
_LIFT = "remove the throttle afterwards with `headrace cluster reassign throttle off`"


class BrokersType(click.ParamType[tuple[int, ...]]):
    """Node ids, separated by commas."""

    name = "brokers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(node_id) for node_id in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of broker ids such as 1,2,3", param, ctx)


class RateType(click.ParamType[int]):
    """Megabytes per second, converted to bytes per second; `off` is 0."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "off":
            return 0
        try:
            rate = int(float(value) * _BYTES_PER_MEGABYTE)
        except (ValueError, OverflowError):
            rate = 0
        if rate < 1:
            self.fail(f"{value!r} is not a rate in MB/s such as 20 or 0.5", param, ctx)
        return rate


@click.group(invoke_without_command=True)
@click.option("--topic", "topics", multiple=True, help="Only partitions of this topic; repeatable.")
@click.option("--to", type=BrokersType(), metavar="ID,ID,...", help="Spread the topics over exactly these brokers.")
@click.option("--add-broker", "added", multiple=True, type=int, metavar="ID", help="Move replicas to it; repeatable.")
@click.option(
    "--remove-broker", "removed", multiple=True, type=int, metavar="ID", help="Move all replicas off it; repeatable."
)
@click.option("--plan", type=click.File("rb"), metavar="FILE", help="A kafka-reassign-partitions plan; - for stdin.")
@click.option("--throttle", type=RateType(), metavar="MB/S", help="Limit the replication rate of each broker.")
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
        places = {place.target: place for place in await admin.places(topics)}
        if plan is not None:
            moves = _checked_moves(_read(plan), places.keys(), topics)
        else:
            members = await admin.members()
            nodes = to if to is not None else _remaining(members, places.values(), added, removed)
            own = [place for target, place in places.items() if _moves_by_itself(target, topics)]
            moves = _spread(own, [_usable(members, node_id) for node_id in nodes])
        refused = {} if dry_run else await _begin(admin, moves, throttle, wait=wait)
        return [_move_row(places[target], moves[target], refused, dry_run) for target in sorted(moves)], refused

    rows, refused = with_cluster(server, work)
    print_rows(rows, ("topic", "partition", "replicas", "target", "result"), output)
    print_status(_summary(len(rows), len(refused), throttle, wait=wait, dry_run=dry_run))
    return FAILED if refused else 0


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
@click.option("--topic", "topics", multiple=True, help="Only partitions of this topic; repeatable.")
@server_option
def cancel(topics: Sequence[str], server: str) -> int:
    """Cancel the moves in progress: partitions keep their old replicas, and the new ones are deleted."""

    async def work(cluster: Cluster) -> tuple[int, PartitionErrors]:
        admin = ClusterAdmin(cluster)
        moving = [
            target
            for target in await admin.moves()
            if _moves_by_itself(target, topics) and (not topics or target.topic in topics)
        ]
        return len(moving), await admin.move(dict.fromkeys(moving))

    count, refused = with_cluster(server, work)
    for target, error in refused.items():
        print_status(f"{target}: {error.message}")
    print_status(f"{count - len(refused)} moves cancelled")
    return FAILED if refused else 0


@reassign.command("throttle")
@click.argument("rate", type=RateType(), metavar="MB/S|off")
@server_option
def set_throttle(rate: int, server: str) -> None:
    """Limit the rate at which each broker replicates to out-of-sync replicas; `off` removes the limit."""
    with_cluster(server, lambda cluster: ClusterAdmin(cluster).throttle(rate or None))
    print_status(f"throttle set to {rate / _BYTES_PER_MEGABYTE:g} MB/s on every broker" if rate else "throttle removed")


async def _begin(admin: ClusterAdmin, moves: Reassignments, throttle: int | None, *, wait: bool) -> PartitionErrors:
    if not moves:
        return {}
    if throttle is not None:
        await admin.throttle(throttle or None)
    refused = await admin.move(moves)
    if wait:
        await _wait(admin, {target: moves[target] for target in moves if target not in refused})
        if throttle:
            await admin.throttle(None)
    return refused


async def _wait(admin: ClusterAdmin, moves: Reassignments) -> None:
    async def left() -> int:
        return len((await admin.moves()).keys() & moves.keys())

    await wait_until_none(left, "partitions moving")
    there = {place.target: place.replicas for place in await admin.places({target.topic for target in moves})}
    astray = [target for target, replicas in moves.items() if there.get(target) != tuple(replicas)]
    if astray:
        raise CommandFailed(
            f"{len(astray)} of {len(moves)} partitions do not have their target replicas, for example {astray[0]}: "
            "the moves were cancelled or changed meanwhile; `headrace cluster partitions` shows the replicas"
        )


async def _status(cluster: Cluster) -> list[dict[str, Any]]:
    admin = ClusterAdmin(cluster)
    moving = [place for place in await admin.places() if place.is_moving]
    members = await admin.members()
    nodes = {node_id for place in moving for node_id in (place.leader, *place.adding)} & members.brokers.keys()
    targets = [place.target for place in moving]
    sizes = {node_id: await admin.sizes(node_id, targets) for node_id in sorted(nodes)}

    def size(node_id: int, target: TopicPartition) -> int:
        return sizes.get(node_id, {}).get(target, 0)

    return [
        {
            "topic": place.target.topic,
            "partition": place.target.partition,
            "replicas": place.replicas,
            "adding": place.adding,
            "removing": place.removing,
            "copied_bytes": sum(size(node_id, place.target) for node_id in place.adding),
            "size_bytes": size(place.leader, place.target) * len(place.adding),
        }
        for place in moving
    ]


def _read(plan: BinaryIO) -> Reassignments:
    try:
        return read_plan(plan.read())
    except ValueError as error:
        raise CommandFailed(f"{plan.name} cannot be used: {error}") from None


def _moves_by_itself(target: TopicPartition, topics: Sequence[str]) -> bool:
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


def _spread(places: Collection[PartitionReplicas], brokers: Collection[BrokerView]) -> Reassignments:
    try:
        return spread_over(places, brokers)
    except InvalidReplicationFactor:
        most = max(len(target_replicas(place)) for place in places)
        raise CommandFailed(
            f"{most} replicas do not fit on {len(brokers)} brokers; add brokers, or use --plan to reduce the replicas"
        ) from None


def _remaining(
    members: ClusterMembers, places: Collection[PartitionReplicas], added: Sequence[int], removed: Sequence[int]
) -> Sequence[int]:
    """Return the brokers that hold replicas, plus the added and minus the removed ones. A broker that is down may come
    back: its replicas are not moved unless it is in `removed`."""
    holding = {node_id for place in places for node_id in target_replicas(place)}.difference(removed)
    for node_id in sorted(holding - members.brokers.keys()):
        raise CommandFailed(
            f"broker {node_id} holds replicas but is down; start it, or move them with --remove-broker {node_id}"
        )
    staying = {node_id for node_id in holding if not members.brokers[node_id].is_draining}
    return sorted(staying.union(added).difference(removed))


def _usable(members: ClusterMembers, node_id: int) -> BrokerView:
    broker = members.brokers.get(node_id)
    if broker is None:
        raise CommandFailed(f"broker {node_id} is not up; `headrace cluster info` lists the brokers")
    if broker.is_draining:
        raise CommandFailed(f"broker {node_id} is draining; cancel that with `headrace cluster drain {node_id} --undo`")
    return broker


def _move_row(
    place: PartitionReplicas, target: Sequence[int], refused: PartitionErrors, dry_run: bool
) -> dict[str, Any]:
    error = refused.get(place.target)
    return {
        "topic": place.target.topic,
        "partition": place.target.partition,
        "replicas": target_replicas(place),
        "target": target,
        "result": "not begun" if dry_run else "begun" if error is None else error.message,
    }


def _summary(count: int, refused: int, throttle: int | None, *, wait: bool, dry_run: bool) -> str:
    if not count:
        return "nothing to move: all partitions have their target replicas"
    if dry_run:
        return f"{count} partitions would move (--dry-run)"
    if wait:
        return f"{count - refused} partitions have been moved"
    return f"{count - refused} partitions are moving; `headrace cluster reassign status` shows the progress" + (
        f"; {_LIFT}" if throttle else ""
    )
