"""`headrace cluster ...`: show brokers, partitions, leaders and health, and operate on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from headrace.cli.cluster.health import HealthProblem, find_problems, replicas_per_broker
from headrace.cli.cluster.reassign import reassign, wait_until_none
from headrace.cli.cluster.replication import reduce_and_drain
from headrace.cli.cluster_client import with_cluster
from headrace.cli.completion import TOPIC
from headrace.cli.failure import FAILED
from headrace.cli.options import confirm, server_option, yes_option
from headrace.cli.output import counted, echo, output_option, print_rows, print_status, print_table, to_json, wants_json
from headrace.client.admin.cluster_admin import ClusterAdmin, ClusterMembers, PartitionErrors, PartitionReplicas
from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicPartition
from headrace.model.errors import ElectionNotNeeded
from headrace.model.names import owner_of

_PARTITION_COLUMNS = ("topic", "partition", "leader", "epoch", "replicas", "in_sync", "eligible", "adding", "removing")


@click.group()
def cluster() -> None:
    """Show brokers and partitions, check health, move partitions, drain brokers, elect leaders."""


cluster.add_command(reassign)


@cluster.command()
@server_option
@output_option
def info(server: str, output: str | None) -> None:
    """Show the cluster and its brokers."""

    async def work(cluster: Cluster) -> tuple[ClusterMembers, Sequence[PartitionReplicas]]:
        admin = ClusterAdmin(cluster)
        return await admin.members(), await admin.places()

    members, assignments = with_cluster(server, work)
    rows = _broker_rows(members, assignments)
    controller = members.controller_id if members.controller_id in members.brokers else None
    if wants_json(output):
        summary = {"cluster_id": members.cluster_id, "controller": controller, "partitions": len(assignments)}
        echo(to_json(summary | {"brokers": rows}))
        return
    controller_text = "none" if controller is None else f"broker {controller}"
    echo(f"cluster {members.cluster_id}  controller {controller_text}  {counted(len(assignments), 'partition')}", "")
    print_table(rows, ("broker", "address", "rack", "leaders", "replicas", "state"))


@cluster.command()
@server_option
@output_option
def health(server: str, output: str | None) -> int:
    """Report problems. The exit code is 0 if the cluster is healthy, else 1.

    A cluster is healthy if every broker responds and reaches the registry, and every partition has a leader and all its
    replicas in sync.
    """

    async def work(cluster: Cluster) -> tuple[ClusterMembers, Sequence[PartitionReplicas], Sequence[HealthProblem]]:
        admin = ClusterAdmin(cluster)
        members, assignments = await admin.members(), await admin.places()
        states = await admin.broker_states(members.brokers)
        wanted = await admin.min_insync(assignment.target.topic for assignment in assignments)
        return members, assignments, find_problems(members, states, assignments, wanted)

    members, assignments, problems = with_cluster(server, work)
    rows = [
        {"problem": problem.problem, "subject": problem.subject, "detail": problem.detail, "grave": problem.is_critical}
        for problem in problems
    ]
    if rows or wants_json(output):
        print_rows(rows, ("problem", "subject", "detail"), output)
    is_unhealthy = any(problem.is_critical for problem in problems)
    verdict = "unhealthy" if is_unhealthy else "healthy"
    brokers, partitions = counted(len(members.brokers), "broker"), counted(len(assignments), "partition")
    print_status(f"the cluster is {verdict}: {brokers} up, {partitions}")
    return FAILED if is_unhealthy else 0


@cluster.command()
@click.argument("topics", type=TOPIC, nargs=-1, metavar="[TOPIC]...")
@click.option("--under-replicated", is_flag=True, help="Only partitions with out-of-sync replicas.")
@click.option("--offline", is_flag=True, help="Only partitions without a leader.")
@server_option
@output_option
def partitions(topics: Sequence[str], under_replicated: bool, offline: bool, server: str, output: str | None) -> None:
    """Show leaders and replicas of the partitions of the TOPICs, or of all topics."""
    assignments = with_cluster(server, lambda cluster: ClusterAdmin(cluster).places(topics))
    rows = [
        {
            **assignment.target._asdict(),
            "leader": None if assignment.is_offline else assignment.leader,
            "epoch": assignment.leader_epoch,
            "replicas": assignment.replicas,
            "in_sync": assignment.in_sync,
            "eligible": assignment.eligible,
            "adding": assignment.adding,
            "removing": assignment.removing,
        }
        for assignment in assignments
        if not (under_replicated or offline)
        or (under_replicated and assignment.behind)
        or (offline and assignment.is_offline)
    ]
    print_rows(rows, _PARTITION_COLUMNS, output)


@cluster.command()
@click.argument("broker", type=click.IntRange(0))
@click.option("--undo", is_flag=True, help="Cancel the drain, so that the broker is used again.")
@click.option("--wait", is_flag=True, help="Wait until the broker holds no replicas.")
@click.option(
    "--reduce-replicas",
    is_flag=True,
    help="Reduce the replicas of all topics, also internal ones, that have more than there are other brokers.",
)
@server_option
def drain(broker: int, *, undo: bool, wait: bool, reduce_replicas: bool, server: str) -> None:
    """Move all leaders and replicas from BROKER to the other brokers.

    A drain persists across restarts until it is cancelled with --undo. It fails if a topic has more replicas than
    there are other brokers, unless --reduce-replicas allows fewer.
    """
    if undo and (wait or reduce_replicas):
        raise click.UsageError("--wait and --reduce-replicas cannot be combined with --undo")

    async def work(cluster: Cluster) -> None:
        admin = ClusterAdmin(cluster)

        async def count_held() -> int:
            return replicas_per_broker(await admin.places())[broker]

        if reduce_replicas:
            await reduce_and_drain(cluster, broker)
        else:
            await admin.drain(broker, is_drained=not undo)
        if wait:
            await wait_until_none(count_held, f"replicas on broker {broker}")

    with_cluster(server, work)
    if undo:
        print_status(
            f"broker {broker} is in use again; `headrace cluster reassign --add-broker {broker}` moves replicas to it"
        )
    elif wait:
        print_status(f"broker {broker} holds no replicas and can be stopped")
    else:
        print_status(f"broker {broker} is draining; `headrace cluster info` shows the replicas that it still holds")


@cluster.command("elect-leader")
@click.option("--topic", type=TOPIC, help="Only partitions of this topic.")
@click.option("--partition", type=click.IntRange(0), help="Only this partition of the topic.")
@click.option("--unclean", is_flag=True, help="Elect out-of-sync replicas for partitions without a leader.")
@yes_option
@server_option
@output_option
def elect_leader(
    *, topic: str | None, partition: int | None, unclean: bool, yes: bool, server: str, output: str | None
) -> int:
    """Elect the preferred leader of partitions, which is the first replica of each.

    With --unclean, elect a replica that is not in sync for partitions that have no other eligible leader. Acknowledged
    records that this replica lacks are lost: use it only if the brokers that have them will not come back.
    """
    if topic is None and (partition is not None or unclean):
        raise click.UsageError("--partition and --unclean require --topic")
    if unclean:
        confirm(f"Lose the records of {topic} that exist only on unavailable brokers?", yes)

    async def work(cluster: Cluster) -> tuple[Sequence[TopicPartition], PartitionErrors]:
        admin = ClusterAdmin(cluster)
        assignments = [
            assignment
            for assignment in await admin.places([] if topic is None else [topic])
            if assignment.target.partition == partition or (partition is None and _needs_election(assignment, unclean))
        ]
        targets = [assignment.target for assignment in assignments]
        return targets, await (admin.elect_unclean(targets) if unclean else admin.prefer(targets))

    targets, errors = with_cluster(server, work)
    results = {target: error.message for target, error in errors.items()}
    rows = [target._asdict() | {"result": results.get(target, "elected")} for target in targets]
    print_rows(rows, ("topic", "partition", "result"), output)
    if not rows:
        print_status("no election needed: every partition has its preferred leader")
    return FAILED if any(not isinstance(error, ElectionNotNeeded) for error in errors.values()) else 0


def _needs_election(assignment: PartitionReplicas, unclean: bool) -> bool:
    if unclean:
        return assignment.is_offline
    # A co-located topic follows its owner.
    return assignment.leader != assignment.replicas[0] and owner_of(assignment.target.topic) is None


def _broker_rows(members: ClusterMembers, assignments: Sequence[PartitionReplicas]) -> list[dict[str, Any]]:
    held, led = replicas_per_broker(assignments), Counter(assignment.leader for assignment in assignments)
    rows = []
    for node_id in sorted(members.brokers.keys() | held.keys()):
        broker = members.brokers.get(node_id)
        rows.append(
            {
                "broker": node_id,
                "address": None if broker is None else str(broker.address),
                "rack": None if broker is None else broker.rack,
                "leaders": led[node_id],
                "replicas": held[node_id],
                "state": "down" if broker is None else "draining" if broker.is_draining else "up",
            }
        )
    return rows
