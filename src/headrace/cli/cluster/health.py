"""Assess the health of a cluster from the state of its partitions. Pure.

A partition is reported once, with its most severe problem. Operations that an operator started (reassignments, drains)
are reported as well, but do not make the cluster unhealthy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.client.admin.cluster_admin import BrokerState, ClusterMembers, PartitionReplicas

WITHOUT_SESSION = (
    "cannot reach the registry: no leaders are elected, and topics and configs cannot be changed",
    "check the registry; a ZooKeeper ensemble needs more than half of its servers",
)
"""What it means that a broker has no session with the registry, and the next step."""

_DIED = (
    "if it has died, other brokers notice when its session ends (`headrace serve --session-timeout`, 6 s by default); "
    "until then they report its partitions as before"
)
_NO_CONTROLLER = "no broker is the controller; no leaders are elected until a broker becomes the controller"


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """`is_critical` if writes fail, or if the cluster tolerates fewer further failures than configured."""

    problem: str
    subject: str
    detail: str
    is_critical: bool = True


def find_problems(
    members: ClusterMembers,
    states: Mapping[int, BrokerState],
    assignments: Sequence[PartitionReplicas],
    min_insync: Mapping[str, int],
) -> Sequence[HealthProblem]:
    """List all problems, the most severe first."""
    partitions = [problem for assignment in assignments for problem in _partition_problems(assignment, min_insync)]
    worst_first = ("offline", "under min.insync", "under-replicated", "reassigning")
    partitions.sort(key=lambda problem: worst_first.index(problem.problem))
    return [*_broker_problems(members, states, assignments), *partitions]


def replicas_per_broker(assignments: Sequence[PartitionReplicas]) -> Counter[int]:
    return Counter(node_id for assignment in assignments for node_id in assignment.replicas)


def _broker_problems(
    members: ClusterMembers, states: Mapping[int, BrokerState], assignments: Sequence[PartitionReplicas]
) -> Iterator[HealthProblem]:
    for node_id, state in states.items():
        if state is BrokerState.WITHOUT_SESSION:
            yield HealthProblem("no registry", f"broker {node_id}", "; ".join(WITHOUT_SESSION))
        elif state is BrokerState.UNREACHABLE:
            detail = f"it does not respond at {members.brokers[node_id].address}; {_DIED}"
            yield HealthProblem("broker unreachable", f"broker {node_id}", detail)
    if members.controller_id not in members.brokers:
        yield HealthProblem("no controller", "cluster", _NO_CONTROLLER)
    held = replicas_per_broker(assignments)
    for node_id in sorted(held.keys() - members.brokers.keys()):
        yield HealthProblem("broker missing", f"broker {node_id}", f"it is down; replicas on it: {held[node_id]}")
    for broker in members.brokers.values():
        if broker.is_draining:
            rest = f"replicas still on it: {held[broker.node_id]}"
            yield HealthProblem("draining", f"broker {broker.node_id}", rest, is_critical=False)


def _partition_problems(assignment: PartitionReplicas, min_insync: Mapping[str, int]) -> Iterator[HealthProblem]:
    subject, wanted = str(assignment.target), min_insync.get(assignment.target.topic, 1)
    if assignment.is_offline:
        may_lead = [*assignment.in_sync, *assignment.eligible]
        yield HealthProblem("offline", subject, f"it has no leader; eligible once up: {_brokers(may_lead)}")
    elif len(assignment.in_sync) < wanted:
        detail = f"{len(assignment.in_sync)} in sync, {wanted} required for acks=all; "
        yield HealthProblem("under min.insync", subject, f"{detail}out of sync: {_brokers(assignment.behind)}")
    elif assignment.behind:
        yield HealthProblem("under-replicated", subject, f"out of sync: {_brokers(assignment.behind)}")
    if assignment.is_moving:
        ends = f"adding {_brokers(assignment.adding)}, removing {_brokers(assignment.removing)}"
        yield HealthProblem("reassigning", subject, ends, is_critical=False)


def _brokers(nodes: Sequence[int]) -> str:
    if not nodes:
        return "none"
    return f"broker{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
