"""Assess the health of a cluster from the state of its partitions. Pure.

A partition is reported once, with its most severe problem. Operations that an operator started (reassignments, drains)
are reported as well, but do not make the cluster unhealthy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.client.admin.cluster_admin import ClusterMembers, PartitionReplicas

_NO_CONTROLLER = "no broker is the controller; no leaders are elected until a broker becomes the controller"


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """`is_grave` if records cannot be written, or if the cluster tolerates fewer further failures than configured."""

    problem: str
    subject: str
    detail: str
    is_grave: bool = True


def find_problems(
    members: ClusterMembers, places: Sequence[PartitionReplicas], min_insync: Mapping[str, int]
) -> Sequence[HealthProblem]:
    """List all findings, the most severe first."""
    found = [*_broker_problems(members, places)]
    partitions = [finding for place in places for finding in _partition_problems(place, min_insync)]
    worst_first = ("offline", "under min.insync", "under-replicated", "reassigning")
    return found + sorted(partitions, key=lambda finding: worst_first.index(finding.problem))


def replicas_per_broker(places: Sequence[PartitionReplicas]) -> Mapping[int, int]:
    """Count the replicas on each broker."""
    held: dict[int, int] = {}
    for place in places:
        for node_id in place.replicas:
            held[node_id] = held.get(node_id, 0) + 1
    return held


def _broker_problems(members: ClusterMembers, places: Sequence[PartitionReplicas]) -> Iterator[HealthProblem]:
    if members.controller_id not in members.brokers:
        yield HealthProblem("no controller", "cluster", _NO_CONTROLLER)
    held = replicas_per_broker(places)
    for node_id in sorted(held.keys() - members.brokers.keys()):
        yield HealthProblem("broker missing", f"broker {node_id}", f"it is down; replicas on it: {held[node_id]}")
    for broker in members.brokers.values():
        if broker.is_draining:
            rest = f"replicas still on it: {held.get(broker.node_id, 0)}"
            yield HealthProblem("draining", f"broker {broker.node_id}", rest, is_grave=False)


def _partition_problems(place: PartitionReplicas, min_insync: Mapping[str, int]) -> Iterator[HealthProblem]:
    subject, wanted = str(place.target), min_insync.get(place.target.topic, 1)
    if place.is_offline:
        may_lead = [*place.in_sync, *place.eligible]
        yield HealthProblem("offline", subject, f"it has no leader; eligible once up: {_brokers(may_lead)}")
    elif len(place.in_sync) < wanted:
        few = f"{len(place.in_sync)} in sync, {wanted} required for acks=all; out of sync: {_brokers(place.behind)}"
        yield HealthProblem("under min.insync", subject, few)
    elif place.behind:
        yield HealthProblem("under-replicated", subject, f"out of sync: {_brokers(place.behind)}")
    if place.is_moving:
        ends = f"adding {_brokers(place.adding)}, removing {_brokers(place.removing)}"
        yield HealthProblem("reassigning", subject, ends, is_grave=False)


def _brokers(nodes: Sequence[int]) -> str:
    if not nodes:
        return "none"
    return f"broker{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
