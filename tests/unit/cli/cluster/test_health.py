"""The problems that `headrace cluster health` reports."""

from __future__ import annotations

import pytest

from headrace.cli.cluster.health import HealthProblem, find_problems
from headrace.client.admin.cluster_admin import BrokerState, BrokerView, ClusterMembers, PartitionReplicas
from headrace.client.connections.address import Address
from headrace.client.metadata import TopicPartition

ORDERS = TopicPartition("orders", 0)


def members(*node_ids: int, controller_id: int = 1, draining: int | None = None) -> ClusterMembers:
    brokers = {
        node_id: BrokerView(node_id, Address("host", 9092), None, is_draining=node_id == draining)
        for node_id in node_ids
    }
    return ClusterMembers("c", controller_id, brokers)


def place(leader: int, *in_sync: int, moving: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())) -> PartitionReplicas:
    return PartitionReplicas(ORDERS, leader, 3, (1, 2, 3), in_sync, (), *moving)


@pytest.mark.parametrize(
    ("partition", "min_insync", "problems"),
    [
        (place(1, 1, 2, 3), 2, []),
        (place(1, 1, 2), 2, ["under-replicated"]),
        (place(1, 1), 2, ["under min.insync"]),
        (place(-1, 1), 2, ["offline"]),
        (place(-1), 1, ["offline"]),
        (place(1, 1, 2, moving=((3,), ())), 1, ["reassigning"]),
        (place(1, 1, 3, moving=((3,), (2,))), 1, ["under-replicated", "reassigning"]),
        (place(-1, 1, moving=((3,), (2,))), 1, ["offline", "reassigning"]),
    ],
)
def test_a_partition_is_reported_with_its_most_severe_problem(
    partition: PartitionReplicas, min_insync: int, problems: list[str]
) -> None:
    findings = find_problems(members(1, 2, 3), {}, [partition], {"orders": min_insync})
    assert [found.problem for found in findings] == problems
    assert all(found.is_critical == (found.problem != "reassigning") for found in findings)


def test_an_offline_partition_names_the_brokers_that_may_lead() -> None:
    waiting = PartitionReplicas(ORDERS, -1, 3, (1, 2, 3), (2,), (3,))
    (found,) = find_problems(members(1, 2, 3), {}, [waiting], {})
    assert found.detail == "it has no leader; eligible once up: brokers 2, 3"


def test_a_down_broker_is_reported_only_if_it_holds_replicas() -> None:
    findings = find_problems(members(1, 2), {}, [place(1, 1, 2)], {})
    assert findings[1].detail == "out of sync: broker 3"
    assert findings[0] == HealthProblem("broker missing", "broker 3", "it is down; replicas on it: 1")
    assert find_problems(members(1, 2, 3), {}, [], {}) == []


def test_a_cluster_without_a_controller_is_unhealthy() -> None:
    (found,) = find_problems(members(1, 2, 3, controller_id=-1), {}, [], {})
    assert (found.problem, found.is_critical) == ("no controller", True)


def test_a_drain_is_reported_with_the_remaining_replicas_but_not_unhealthy() -> None:
    (found,) = find_problems(members(1, 2, 3, draining=3), {}, [place(1, 1, 2, 3)], {})
    assert found == HealthProblem("draining", "broker 3", "replicas still on it: 1", is_critical=False)


def test_a_broker_that_cannot_reach_the_registry_makes_the_cluster_unhealthy() -> None:
    states = {1: BrokerState.OK, 2: BrokerState.WITHOUT_SESSION}
    (found,) = find_problems(members(1, 2), states, [], {})
    assert (found.problem, found.subject, found.is_critical) == ("no registry", "broker 2", True)
    assert "check the registry" in found.detail


def test_a_broker_that_does_not_respond_is_reported_before_its_session_ends() -> None:
    (found,) = find_problems(members(1, 2), {1: BrokerState.OK, 2: BrokerState.UNREACHABLE}, [], {})
    assert (found.problem, found.subject, found.is_critical) == ("broker unreachable", "broker 2", True)
    assert "host:9092" in found.detail
    assert "--session-timeout" in found.detail
