"""Change the number of replicas of topics: for `headrace topic alter --replicas` and `headrace cluster drain`.

- Every change is an ordinary reassignment: superfluous replicas are removed only after all others are in sync.
- The brokers keep the internal topics at a configured number of replicas, as far as there are brokers. Fewer replicas
  therefore require a change of that configuration, or that fewer brokers are in use.
- A topic with fewer replicas than its min.insync.replicas would reject every write with acks=all. A change to so few
  is rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from headrace.cli.cluster.reassign import Reassignments, broker_records, target_replicas
from headrace.cli.failure import CommandFailed
from headrace.client.admin.cluster_admin import MIN_INSYNC, BrokerView, ClusterAdmin, ClusterMembers, PartitionReplicas
from headrace.client.admin.topic_admin import TopicAdmin
from headrace.client.cluster import Cluster
from headrace.machines.controller.placement import resize_replicas
from headrace.model.names import CONSUMER_OFFSETS, INTERNAL_TOPICS, TRANSACTION_STATE, owner_of

_KEPT_REPLICATION = {
    CONSUMER_OFFSETS: "offsets.topic.replication.factor",
    TRANSACTION_STATE: "transaction.state.log.replication.factor",
}


async def plan_topic_resize(
    admin: ClusterAdmin, topic: str, replication: int, *, min_insync: int | None = None
) -> tuple[Sequence[PartitionReplicas], Reassignments]:
    """Return the partitions of a topic, and the moves that give them this number of replicas. `min_insync`: the
    topic's min.insync.replicas, if it is about to change."""
    owner = owner_of(topic)
    if owner is not None:
        raise CommandFailed(f"{topic} has the replicas of {owner}; change those of that topic instead")
    assignments, members = await admin.places(), await admin.members()
    chosen = [assignment for assignment in assignments if assignment.target.topic == topic]
    if not chosen:
        chosen = [*await admin.places([topic])]  # raises the error of a topic that does not exist
    brokers = _usable_brokers(members)
    if replication > len(brokers):
        raise CommandFailed(
            f"{replication} replicas need {replication} brokers, but {len(brokers)} can hold replicas; "
            "`headrace cluster info` shows the brokers"
        )
    if topic in _KEPT_REPLICATION:
        await _check_kept_replication(admin, topic, replication, members, len(brokers))
    _check_min_insync(await admin.min_insync([topic]) if min_insync is None else {topic: min_insync}, replication)
    return chosen, _plan(chosen, assignments, replication, brokers)


async def reduce_and_drain(cluster: Cluster, node_id: int) -> None:
    """Drain a broker, and start to reduce the replicas of all topics that have more than there are other brokers.

    The broker is marked first: while it is in use, new topics would get the larger number of replicas, and the
    controller would raise that of the internal topics again."""
    admin = ClusterAdmin(cluster)
    assignments, members = await admin.places(), await admin.members()
    others = _usable_brokers(members, without=node_id)
    _check_all_up(assignments, members, node_id)
    if others:
        reduced = {one.target.topic for one in _larger_than(len(others), assignments)}
        _check_min_insync(await admin.min_insync(reduced - INTERNAL_TOPICS), len(others))
        lowered = (len(others) + 1) // 2  # as for a new internal topic: one failure must not make it unavailable
        for topic, wanted in (await admin.min_insync(reduced & INTERNAL_TOPICS)).items():
            if lowered < wanted:
                await TopicAdmin(cluster).alter_configs(topic, set_to={MIN_INSYNC: str(lowered)})
    await admin.drain(node_id, reduces_replicas=True)
    assignments = await admin.places()
    moves = _plan(_larger_than(len(others), assignments), assignments, len(others), others) if others else {}
    errors = await admin.move(moves)
    for target, error in errors.items():
        raise CommandFailed(
            f"{len(errors)} of {len(moves)} partitions keep their replicas, for example {target}: {error.message}; "
            "repeat the command to continue"
        )


def _plan(
    chosen: Collection[PartitionReplicas],
    assignments: Collection[PartitionReplicas],
    replication: int,
    brokers: Collection[BrokerView],
) -> Reassignments:
    current = {one.target: _in_sync_first(one) for one in chosen}
    topics = {target.topic for target in current}
    others = [
        target_replicas(one)
        for one in assignments
        if one.target not in current and owner_of(one.target.topic) not in topics
    ]
    return resize_replicas(current, replication, broker_records(brokers), others)


def _in_sync_first(assignment: PartitionReplicas) -> tuple[int, ...]:
    """Return the target replicas. The first one stays when replicas are removed, so it should have all records."""
    return tuple(sorted(target_replicas(assignment), key=lambda node_id: node_id not in assignment.in_sync))


def _larger_than(replication: int, assignments: Collection[PartitionReplicas]) -> list[PartitionReplicas]:
    """Return the partitions with more replicas, without co-located ones, which follow their owner."""
    return [
        one for one in assignments if len(target_replicas(one)) > replication and owner_of(one.target.topic) is None
    ]


def _usable_brokers(members: ClusterMembers, *, without: int | None = None) -> list[BrokerView]:
    return [one for one in members.brokers.values() if not one.is_draining and one.node_id != without]


def _check_all_up(assignments: Collection[PartitionReplicas], members: ClusterMembers, drained: int) -> None:
    """Raise if a broker that holds replicas is down. It may come back, but would not count as one of the others, so
    that more replicas than necessary would be removed."""
    holding = {node_id for assignment in assignments for node_id in target_replicas(assignment)}
    for node_id in sorted(holding - members.brokers.keys() - {drained}):
        raise CommandFailed(
            f"broker {node_id} holds replicas but is down; start it, or drain it first with "
            f"`headrace cluster drain {node_id} --reduce-replicas`"
        )


async def _check_kept_replication(
    admin: ClusterAdmin, topic: str, replication: int, members: ClusterMembers, brokers: int
) -> None:
    config = _KEPT_REPLICATION[topic]
    node_id = members.controller_id if members.controller_id in members.brokers else min(members.brokers)
    kept = min(int(await admin.config(node_id, config) or 1), brokers)
    if replication < kept:
        raise CommandFailed(
            f"the brokers keep {topic} at {kept} replicas; restart them with --set {config}={replication}, "
            "then repeat the command"
        )


def _check_min_insync(min_insync: Mapping[str, int], replication: int) -> None:
    stopped = sorted(topic for topic, wanted in min_insync.items() if wanted > replication)
    if stopped:
        named = stopped[0] if len(stopped) == 1 else "TOPIC"
        raise CommandFailed(
            f"with {replication} replicas, writes with acks=all to {', '.join(stopped)} would fail, because "
            f"{MIN_INSYNC} is higher; lower it with `headrace topic alter {named} --set {MIN_INSYNC}={replication}`"
        )
