"""`headrace topic alter --replicas` and `headrace cluster drain --reduce-replicas` change the number of replicas."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.cli.cluster.cluster_command_runner import ClusterCommandRunner
from tests.unit.client.admin.administered_cluster import led_partition

from headrace.cli.main import main
from headrace.model.errors import InvalidReplicaAssignment
from headrace.wire import apis


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> ClusterCommandRunner:
    return ClusterCommandRunner(monkeypatch, capsys)


def alter(harness: ClusterCommandRunner, *arguments: str, expect: int = 0) -> list[dict[str, object]]:
    return harness.play("alter", *arguments, noun="topic", expect=expect)


def test_a_topic_gets_fewer_replicas_by_a_reassignment(harness: ClusterCommandRunner) -> None:
    harness.there.records = {("orders", index): led_partition(1, 2, 3) for index in range(2)}
    harness.there.records["audit", 0] = led_partition(1, 2, 3)
    rows = alter(harness, "orders", "--replicas", "2")
    assert [(row["topic"], row["partition"], row["result"]) for row in rows] == [
        ("orders", 0, "begun"),
        ("orders", 1, "begun"),
    ]
    assert all(len(harness.there.records["orders", index].removing) == 1 for index in range(2))
    assert harness.there.records["audit", 0] == led_partition(1, 2, 3)
    assert "`headrace cluster reassign status` shows the progress" in harness.stderr


def test_with_wait_the_command_returns_when_all_partitions_have_their_replicas(harness: ClusterCommandRunner) -> None:
    harness.there.records["orders", 0] = led_partition(2)
    harness.there.polls_left = 4
    alter(harness, "orders", "--replicas", "3", "--wait")
    assert sorted(harness.there.records["orders", 0].replicas) == [1, 2, 3]
    assert harness.there.records["orders", 0].replicas[0] == 2
    assert harness.stderr.endswith("1 partition moved\n")


def test_a_dry_run_shows_the_replicas_and_changes_nothing(harness: ClusterCommandRunner) -> None:
    harness.there.records["orders", 0] = led_partition(1, 2, 3)
    (row,) = alter(harness, "orders", "--replicas", "1", "--dry-run")
    assert (row["target"], row["result"]) == ([1], "not begun")
    assert harness.there.count(apis.ALTER_PARTITION_REASSIGNMENTS) == 0


def test_a_topic_that_has_its_replicas_is_left_alone(harness: ClusterCommandRunner) -> None:
    harness.there.records["orders", 0] = replace(led_partition(1, 2, 3), removing=(3,))
    assert alter(harness, "orders", "--replicas", "2") == []
    assert "nothing to move" in harness.stderr


def test_the_replica_that_stays_is_in_sync(harness: ClusterCommandRunner) -> None:
    harness.there.records["orders", 0] = replace(led_partition(2, 1, 3, first=1), isr=(2, 3))
    assert alter(harness, "orders", "--replicas", "1")[0]["target"] == [2]


def test_more_replicas_than_live_brokers_are_rejected(harness: ClusterCommandRunner) -> None:
    harness.there.records["orders", 0] = led_partition(1, 2)
    harness.there.drain(3)
    alter(harness, "orders", "--replicas", "3", expect=1)
    assert "3 replicas need 3 brokers, but 2 can hold replicas; `headrace cluster info`" in harness.stderr


def test_fewer_replicas_than_min_insync_replicas_are_rejected_unless_it_is_lowered(
    harness: ClusterCommandRunner,
) -> None:
    harness.there.records["orders", 0] = led_partition(1, 2, 3)
    harness.there.min_insync = 2
    alter(harness, "orders", "--replicas", "1", expect=1)
    assert "`headrace topic alter orders --set min.insync.replicas=1`" in harness.stderr
    assert harness.there.count(apis.ALTER_PARTITION_REASSIGNMENTS) == 0
    (row,) = alter(harness, "orders", "--set", "min.insync.replicas=1", "--replicas", "1")
    assert (row["target"], harness.there.min_insync_of) == ([1], {"orders": 1})


def test_a_missing_or_colocated_topic_is_rejected(harness: ClusterCommandRunner) -> None:
    harness.there.records["orders", 0] = led_partition(1, 2)
    alter(harness, "nope", "--replicas", "1", expect=1)
    assert "there is no topic 'nope'" in harness.stderr
    alter(harness, "__acks.orders", "--replicas", "1", expect=1)
    assert "__acks.orders has the replicas of orders" in harness.stderr


def test_an_internal_topic_is_not_reduced_below_its_configured_replicas(harness: ClusterCommandRunner) -> None:
    harness.there.records["__consumer_offsets", 0] = led_partition(1, 2, 3)
    alter(harness, "__consumer_offsets", "--replicas", "2", expect=1)
    assert "restart them with --set offsets.topic.replication.factor=2" in harness.stderr
    harness.there.internal_replication = 2
    assert len(alter(harness, "__consumer_offsets", "--replicas", "2")) == 1


def test_a_drain_reduces_the_replicas_of_topics_with_too_many(harness: ClusterCommandRunner) -> None:
    harness.there.records = {
        ("orders", 0): led_partition(3, 1, 2),
        ("__acks.orders", 0): led_partition(1, 2),
        ("__consumer_offsets", 0): led_partition(1, 2, 3),
        ("small", 0): led_partition(1, 2),
    }
    harness.there.min_insync = 2
    harness.there.polls_left = 3
    harness.play("drain", "3", "--wait", "--reduce-replicas")
    assert (harness.there.drains, harness.there.reduces_replicas) == ([(3, True)], True)
    assert all(sorted(record.replicas) == [1, 2] for record in harness.there.records.values())
    assert harness.there.min_insync_of == {"__consumer_offsets": 1}, "a single failure must not stop the groups"
    assert "broker 3 holds no replicas and can be stopped" in harness.stderr


def test_a_drain_is_rejected_if_min_insync_replicas_would_stop_writes(harness: ClusterCommandRunner) -> None:
    harness.there.records = {(topic, 0): led_partition(1, 2, 3) for topic in ("orders", "audit")}
    harness.there.min_insync = 3
    harness.play("drain", "3", "--reduce-replicas", expect=1)
    assert "acks=all to audit, orders would fail" in harness.stderr
    assert "`headrace topic alter TOPIC --set min.insync.replicas=2`" in harness.stderr
    assert harness.there.drains == []


def test_a_drain_does_not_reduce_replicas_because_another_broker_is_down(harness: ClusterCommandRunner) -> None:
    harness.there.records["orders", 0] = replace(led_partition(1, 2, 9), isr=(1, 2))
    harness.play("drain", "2", "--reduce-replicas", expect=1)
    assert "broker 9 holds replicas but is down; start it" in harness.stderr
    harness.play("drain", "9", "--reduce-replicas", expect=1)
    assert harness.there.drains == [(9, True)], "it is the broker itself that is down"


def test_a_drain_that_cannot_reduce_all_partitions_fails_with_the_reason(harness: ClusterCommandRunner) -> None:
    harness.there.records["orders", 0] = led_partition(3, 1, 2)
    harness.there._change = lambda *_: (InvalidReplicaAssignment.code, "not now")  # type: ignore[method-assign]
    harness.play("drain", "3", "--reduce-replicas", "--wait", expect=1)
    assert harness.stderr == (
        "error: 1 of 1 partitions keep their replicas, for example orders[0]: not now; repeat the command to continue\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "alter", "orders"],
        ["topic", "alter", "orders", "--replicas", "0"],
        ["topic", "alter", "orders", "--set", "retention.ms=1", "--wait"],
        ["cluster", "drain", "1", "--undo", "--reduce-replicas"],
    ],
)
def test_wrong_usage_is_rejected_before_a_request_is_sent(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
