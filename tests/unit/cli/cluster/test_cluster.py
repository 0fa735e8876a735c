"""`headrace cluster`: its output, its requests and its exit codes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.cli.cluster.cluster_command_runner import ClusterCommandRunner
from tests.unit.client.admin.administered_cluster import led_partition

from headrace.cli.main import main
from headrace.wire import apis


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> ClusterCommandRunner:
    return ClusterCommandRunner(monkeypatch, capsys)


def test_info_counts_what_each_broker_leads_and_holds(harness: ClusterCommandRunner) -> None:
    harness.there.records = {
        ("orders", 0): led_partition(1, 2),
        ("orders", 1): led_partition(1, 4),
        ("audit", 0): led_partition(2, 1),
    }
    harness.there.drain(2)
    (row,) = harness.play("info")
    assert (row["cluster_id"], row["controller"], row["partitions"]) == ("scripted", 1, 3)
    assert row["brokers"] == [
        {"broker": 1, "address": "broker1:9092", "rack": "rack1", "leaders": 2, "replicas": 3, "state": "up"},
        {"broker": 2, "address": "broker2:9092", "rack": "rack2", "leaders": 1, "replicas": 2, "state": "draining"},
        {"broker": 3, "address": "broker3:9092", "rack": "rack3", "leaders": 0, "replicas": 0, "state": "up"},
        {"broker": 4, "address": None, "rack": None, "leaders": 0, "replicas": 1, "state": "down"},
    ]
    text = harness.show("info")
    assert text.startswith("cluster scripted  controller broker 1  3 partitions\n")
    assert "BROKER  ADDRESS" in text


def test_info_reports_a_missing_controller(harness: ClusterCommandRunner) -> None:
    harness.there.controller_id = 9
    assert harness.play("info")[0]["controller"] is None
    assert "controller none" in harness.show("info")


def test_a_healthy_cluster_exits_with_0_and_lists_no_problems(harness: ClusterCommandRunner) -> None:
    harness.there.records["orders", 0] = led_partition(1, 2, 3)
    assert harness.play("health") == []
    assert harness.stderr == "the cluster is healthy: 3 brokers up, 1 partition\n"
    assert harness.show("health") == ""


def test_an_unhealthy_cluster_exits_with_1_and_lists_its_problems(harness: ClusterCommandRunner) -> None:
    harness.there.min_insync = 2
    harness.there.records = {
        ("orders", 0): replace(led_partition(1, 2), isr=(1,)),
        ("orders", 1): replace(led_partition(4, 5), leader=-1, isr=(4,)),
    }
    rows = harness.play("health", expect=1)
    assert [(row["problem"], row["subject"], row["grave"]) for row in rows] == [
        ("broker missing", "broker 4", True),
        ("broker missing", "broker 5", True),
        ("offline", "orders[1]", True),
        ("under min.insync", "orders[0]", True),
    ]
    assert "unhealthy" in harness.stderr
    assert "PROBLEM" in harness.show("health", expect=1)


def test_health_asks_every_broker_whether_it_responds_and_reaches_the_registry(harness: ClusterCommandRunner) -> None:
    harness.there.without_session = {1}
    harness.there.silent = {3}
    rows = harness.play("health", expect=1)
    assert [(row["problem"], row["subject"]) for row in rows] == [
        ("no registry", "broker 1"),
        ("broker unreachable", "broker 3"),
    ]


def test_a_move_in_progress_is_reported_but_not_unhealthy(harness: ClusterCommandRunner) -> None:
    harness.there.records["orders", 0] = replace(led_partition(1, 2, 3), isr=(1, 2), adding=(3,))
    assert [row["problem"] for row in harness.play("health")] == ["reassigning"]


def test_partitions_are_shown_with_leaders_and_replicas(harness: ClusterCommandRunner) -> None:
    harness.there.records = {
        ("orders", 0): replace(led_partition(1, 2, 3), isr=(1,), elr=(2,), adding=(3,)),
        ("orders", 1): replace(led_partition(1, 2), leader=-1, isr=(1,)),
        ("orders", 2): led_partition(1, 2),
        ("audit", 0): led_partition(1, 2),
    }
    first = harness.play("partitions", "orders")[0]
    assert first == {
        "topic": "orders",
        "partition": 0,
        "leader": 1,
        "epoch": 5,
        "replicas": [1, 2, 3],
        "in_sync": [1],
        "eligible": [2],
        "adding": [3],
        "removing": [],
    }
    assert [row["leader"] for row in harness.play("partitions", "orders")] == [1, None, 1]
    assert len(harness.play("partitions")) == 4
    assert [row["partition"] for row in harness.play("partitions", "--offline")] == [1]
    assert [row["partition"] for row in harness.play("partitions", "--under-replicated")] == [0, 1]
    assert [row["partition"] for row in harness.play("partitions", "--under-replicated", "--offline")] == [0, 1]
    assert "ELIGIBLE" in harness.show("partitions")


def test_a_missing_topic_names_the_next_step(harness: ClusterCommandRunner) -> None:
    harness.play("partitions", "nope", expect=1)
    assert harness.stderr.startswith("error: there is no topic 'nope'; `headrace topic list`")


def test_a_drain_is_requested_and_cancelled_with_the_next_step(harness: ClusterCommandRunner) -> None:
    harness.play("drain", "3")
    assert "broker 3 is draining; `headrace cluster info`" in harness.stderr
    harness.play("drain", "3", "--undo")
    assert "`headrace cluster reassign --add-broker 3`" in harness.stderr
    assert harness.there.drains == [(3, True), (3, False)]


def test_drain_waits_until_the_broker_holds_no_replicas(harness: ClusterCommandRunner) -> None:
    harness.there.records = {
        ("orders", 0): replace(led_partition(1, 2), removing=(2,)),
        ("orders", 1): led_partition(1, 3),
    }
    harness.there.polls_left = 3
    harness.play("drain", "2", "--wait")
    assert "broker 2 holds no replicas" in harness.stderr
    assert harness.there.count(apis.DESCRIBE_TOPIC_PARTITIONS) == 4


def test_preferred_leaders_are_elected_where_they_do_not_lead(harness: ClusterCommandRunner) -> None:
    harness.there.records = {
        ("orders", 0): led_partition(2, 1, first=1),
        ("orders", 1): led_partition(1, 2),
        ("audit", 0): led_partition(3, 2, first=2),
        ("__acks.audit", 0): led_partition(3, 2, first=2),  # which will follow
    }
    assert harness.play("elect-leader") == [
        {"topic": "audit", "partition": 0, "result": "elected"},
        {"topic": "orders", "partition": 0, "result": "elected"},
    ]
    assert harness.play("elect-leader") == []
    assert "no election needed" in harness.stderr


def test_an_election_can_be_limited_to_one_partition(harness: ClusterCommandRunner) -> None:
    harness.there.records = {("orders", 0): led_partition(2, 1, first=1), ("orders", 1): led_partition(1, 2)}
    (row,) = harness.play("elect-leader", "--topic", "orders", "--partition", "1")
    assert (row["partition"], row["result"]) == (1, "it leads already")
    assert harness.there.records["orders", 0].leader == 2


def test_a_failed_election_exits_with_1(harness: ClusterCommandRunner) -> None:
    harness.there.records["orders", 0] = led_partition(2, 7, first=7)
    assert harness.play("elect-leader", expect=1)[0]["result"] == "it is not up"


def test_an_unclean_election_requires_confirmation_and_an_offline_partition(harness: ClusterCommandRunner) -> None:
    offline = replace(led_partition(7, 2), leader=-1, isr=(7,))
    harness.there.records = {("orders", 0): offline, ("orders", 1): led_partition(2, 1)}
    harness.play("elect-leader", "--topic", "orders", "--unclean", expect=2)
    assert "--yes" in harness.stderr
    assert harness.there.records["orders", 0] == offline
    (row,) = harness.play("elect-leader", "--topic", "orders", "--unclean", "--yes")
    assert (row["partition"], row["result"]) == (0, "elected")
    assert harness.there.records["orders", 0].leader == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["elect-leader", "--unclean", "--yes"],
        ["elect-leader", "--partition", "1"],
        ["drain"],
        ["drain", "two"],
        ["drain", "1", "--undo", "--wait"],
    ],
)
def test_wrong_usage_is_rejected_before_a_request_is_sent(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
