"""Assess the health of a cluster from the state of its partitions. Pure.

A partition is reported once, with its most severe problem. Operations that an operator started (reassignments, drains)
are reported as well, but do not make the cluster unhealthy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.client.cluster_admin import ClusterMembers, PartitionPlace

_NO_CONTROLLER = "no broker is the controller; no leaders are elected until a broker becomes the controller"


@dataclass(frozen=True, slots=True)
class Finding:
    """`is_grave` if records cannot be written, or if the cluster tolerates fewer further failures than configured."""

    problem: str
    subject: str
    detail: str
    is_grave: bool = True


def judge(
    members: ClusterMembers, places: Sequence[PartitionPlace], min_insync: Mapping[str, int]
) -> Sequence[Finding]:
    """List all findings, the most severe first."""
    found = [*_judge_brokers(members, places)]
    partitions = [finding for place in places for finding in _judge_partition(place, min_insync)]
    worst_first = ("offline", "under min.insync", "under-replicated", "reassigning")
    return found + sorted(partitions, key=lambda finding: worst_first.index(finding.problem))


def held_by(places: Sequence[PartitionPlace]) -> Mapping[int, int]:
    """Count the replicas on each broker."""
    held: dict[int, int] = {}
    for place in places:
        for node_id in place.replicas:
            held[node_id] = held.get(node_id, 0) + 1
    return held


def _judge_brokers(members: ClusterMembers, places: Sequence[PartitionPlace]) -> Iterator[Finding]:
    if members.controller_id not in members.brokers:
        yield Finding("no controller", "cluster", _NO_CONTROLLER)
    held = held_by(places)
    for node_id in sorted(held.keys() - members.brokers.keys()):
        yield Finding("broker missing", f"broker {node_id}", f"it is down; replicas on it: {held[node_id]}")
    for broker in members.brokers.values():
        if broker.is_draining:
            rest = f"replicas still on it: {held.get(broker.node_id, 0)}"
            yield Finding("draining", f"broker {broker.node_id}", rest, is_grave=False)


def _judge_partition(place: PartitionPlace, min_insync: Mapping[str, int]) -> Iterator[Finding]:
    subject, wanted = str(place.target), min_insync.get(place.target.topic, 1)
    if place.is_offline:
        may_lead = [*place.in_sync, *place.eligible]
        yield Finding("offline", subject, f"it has no leader; eligible once up: {_brokers(may_lead)}")
    elif len(place.in_sync) < wanted:
        few = f"{len(place.in_sync)} in sync, {wanted} required for acks=all; out of sync: {_brokers(place.behind)}"
        yield Finding("under min.insync", subject, few)
    elif place.behind:
        yield Finding("under-replicated", subject, f"out of sync: {_brokers(place.behind)}")
    if place.is_moving:
        ends = f"adding {_brokers(place.adding)}, removing {_brokers(place.removing)}"
        yield Finding("reassigning", subject, ends, is_grave=False)


def _brokers(nodes: Sequence[int]) -> str:
    if not nodes:
        return "none"
    return f"broker{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
