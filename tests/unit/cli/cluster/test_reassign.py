"""`headrace cluster reassign`: start moves, wait for them, cancel them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.cli.cluster.cluster_command_runner import ClusterCommandRunner
from tests.unit.client.admin.administered_cluster import led_partition

from headrace.cli.main import main
from headrace.wire import apis

MOVING = replace(led_partition(1, 2, 3), isr=(1, 2), adding=(3,), removing=(2,))


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> ClusterCommandRunner:
    return ClusterCommandRunner(monkeypatch, capsys)


def plan(folder: Path, *partitions: tuple[str, int, list[int]]) -> str:
    """A file as kafka-reassign-partitions writes it."""
    rows = [
        {"topic": topic, "partition": index, "replicas": nodes, "log_dirs": ["any"] * len(nodes)}
        for topic, index, nodes in partitions
    ]
    file = folder / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(file)


def test_a_plan_is_executed_and_its_moves_are_shown(harness: ClusterCommandRunner, tmp_path: Path) -> None:
    harness.there.records = {("orders", 0): led_partition(1, 2), ("orders", 1): led_partition(1, 2)}
    assert harness.play("reassign", "--plan", plan(tmp_path, ("orders", 1, [3, 2]))) == [
        {"topic": "orders", "partition": 1, "replicas": [1, 2], "target": [3, 2], "result": "begun"}
    ]
    assert harness.there.records["orders", 1].adding == (3,)
    assert harness.there.records["orders", 0] == led_partition(1, 2)
    assert "`headrace cluster reassign status`" in harness.stderr


def test_a_dry_run_shows_the_moves_and_starts_none(harness: ClusterCommandRunner, tmp_path: Path) -> None:
    harness.there.records["orders", 0] = led_partition(1, 2)
    arguments = ("reassign", "--plan", plan(tmp_path, ("orders", 0, [3, 2])), "--throttle", "5", "--dry-run")
    (row,) = harness.play(*arguments)
    assert (row["target"], row["result"]) == ([3, 2], "not begun")
    assert harness.there.count(apis.ALTER_PARTITION_REASSIGNMENTS) == 0
    assert harness.there.throttles == []
    assert "--dry-run" in harness.stderr
    assert "TARGET" in harness.show(*arguments)


def test_an_invalid_plan_is_rejected_with_the_reason(harness: ClusterCommandRunner, tmp_path: Path) -> None:
    harness.there.records["orders", 0] = led_partition(1, 2)
    harness.play("reassign", "--plan", plan(tmp_path, ("orders", 7, [1, 2])), expect=1)
    assert "partition orders[7] does not exist; `headrace cluster partitions`" in harness.stderr
    (tmp_path / "bad").write_text('{"version": 1}')
    harness.play("reassign", "--plan", str(tmp_path / "bad"), expect=1)
    assert "bad cannot be used: it is not a plan" in harness.stderr


def test_failed_moves_are_shown_and_exit_with_1(harness: ClusterCommandRunner, tmp_path: Path) -> None:
    harness.there.records = {("orders", 0): led_partition(1, 2), ("orders", 1): led_partition(1, 2)}
    file = plan(tmp_path, ("orders", 0, [1, 1]), ("orders", 1, [1, 3]))
    bad, good = harness.play("reassign", "--plan", file, expect=1)
    assert "twice" in bad["result"]
    assert good["result"] == "begun"
    assert harness.stderr.startswith("1 partition being moved")


def test_a_topic_is_spread_over_the_given_brokers(harness: ClusterCommandRunner) -> None:
    harness.there.records = {("orders", index): led_partition(1, 2) for index in range(4)}
    harness.there.records["audit", 0] = led_partition(1, 2)
    rows = harness.play("reassign", "--topic", "orders", "--to", "2,3")
    assert rows
    for index in range(4):
        record = harness.there.records["orders", index]
        assert sorted(set(record.replicas) - set(record.removing)) == [2, 3]
    assert harness.there.records["audit", 0] == led_partition(1, 2)


def test_an_added_broker_gets_replicas_and_a_removed_one_loses_all(harness: ClusterCommandRunner) -> None:
    harness.there.records = {("orders", index): led_partition(1, 2) for index in range(6)}
    rows = harness.play("reassign", "--add-broker", "3", "--dry-run")
    assert sum(3 in row["target"] for row in rows) == 4
    rows = harness.play("reassign", "--add-broker", "3", "--remove-broker", "1", "--dry-run")
    assert [sorted(row["target"]) for row in rows] == [[2, 3]] * 6
    assert harness.play("reassign", "--add-broker", "2") == []
    assert "nothing to move" in harness.stderr


def test_replicas_of_a_down_broker_move_only_on_request(harness: ClusterCommandRunner) -> None:
    harness.there.records = {("orders", 0): led_partition(1, 2), ("orders", 1): replace(led_partition(1, 9), isr=(1,))}
    harness.play("reassign", "--add-broker", "3", expect=1)
    assert "broker 9 holds replicas but is down; start it, or move them with --remove-broker 9" in harness.stderr
    rows = harness.play("reassign", "--add-broker", "3", "--remove-broker", "9")
    assert all(9 not in row["target"] for row in rows)


def test_unavailable_brokers_are_rejected_as_targets(harness: ClusterCommandRunner) -> None:
    harness.there.records["orders", 0] = led_partition(1, 2)
    harness.play("reassign", "--add-broker", "7", expect=1)
    assert "broker 7 is not up; `headrace cluster info`" in harness.stderr
    harness.there.drain(3)
    harness.play("reassign", "--topic", "orders", "--to", "1,3", expect=1)
    assert "`headrace cluster drain 3 --undo`" in harness.stderr


def test_too_few_brokers_are_rejected(harness: ClusterCommandRunner) -> None:
    harness.there.records["orders", 0] = led_partition(1, 2)
    harness.play("reassign", "--topic", "orders", "--to", "1", expect=1)
    assert (
        harness.stderr == "error: 2 replicas do not fit on 1 broker; add brokers, or reduce the replicas with "
        "`headrace topic alter TOPIC --replicas N`\n"
    )


def test_a_draining_broker_gets_no_replicas(harness: ClusterCommandRunner) -> None:
    harness.there.records = {("orders", index): led_partition(2) for index in range(2)}
    harness.there.drain(2)
    rows = harness.play("reassign", "--add-broker", "1", "--add-broker", "3", "--dry-run")
    assert sorted(row["target"] for row in rows) == [[1], [3]]


def test_a_throttle_is_set_before_the_moves_and_removed_after_the_wait(
    harness: ClusterCommandRunner, tmp_path: Path
) -> None:
    harness.there.records["orders", 0] = led_partition(1, 2)
    harness.there.polls_left = 4
    harness.play("reassign", "--plan", plan(tmp_path, ("orders", 0, [1, 3])), "--throttle", "2.5", "--wait")
    name = "follower.replication.throttled.rate"
    assert harness.there.throttles == [("", name, 0, "2500000"), ("", name, 1, None)]
    assert harness.there.records["orders", 0].replicas == (1, 3)
    assert harness.stderr.endswith("1 partition moved\n")


def test_without_wait_the_throttle_stays_with_a_hint_how_to_remove_it(
    harness: ClusterCommandRunner, tmp_path: Path
) -> None:
    harness.there.records["orders", 0] = led_partition(1, 2)
    harness.play("reassign", "--plan", plan(tmp_path, ("orders", 0, [1, 3])), "--throttle", "10")
    assert [operation for _, _, operation, _ in harness.there.throttles] == [0]
    assert "`headrace cluster reassign throttle off`" in harness.stderr


def test_a_wait_fails_if_replicas_are_not_on_their_targets(harness: ClusterCommandRunner, tmp_path: Path) -> None:
    harness.there.records["orders", 0] = led_partition(1, 2)
    harness.there.polls_left = 2
    file = plan(tmp_path, ("orders", 0, [1, 3]))
    listed = harness.there._list_moves

    def overruled(request: object) -> object:
        answer = listed(request)
        harness.there.records["orders", 0] = led_partition(1, 2)
        return answer

    harness.there._list_moves = overruled  # type: ignore[assignment,method-assign]
    harness.play("reassign", "--plan", file, "--wait", expect=1)
    assert "1 of 1 partitions do not have their target replicas, for example orders[0]" in harness.stderr


def test_status_shows_the_copied_bytes(harness: ClusterCommandRunner) -> None:
    harness.there.records = {("orders", 0): MOVING, ("orders", 1): led_partition(1, 2)}
    assert harness.play("reassign", "status") == [
        {
            "topic": "orders",
            "partition": 0,
            "replicas": [1, 2, 3],
            "adding": [3],
            "removing": [2],
            "copied_bytes": 40,
            "size_bytes": 100,
        }
    ]
    harness.there.records = {}
    assert harness.play("reassign", "status") == []
    assert harness.stderr == "no partition is moving\n"


def test_all_moves_or_those_of_a_topic_are_cancelled(harness: ClusterCommandRunner) -> None:
    harness.there.records = {("orders", 0): MOVING, ("audit", 0): MOVING, ("audit", 1): led_partition(1, 2)}
    harness.play("reassign", "cancel", "--topic", "audit")
    assert harness.stderr == "1 move cancelled\n"
    assert harness.there.records["orders", 0] == MOVING
    harness.play("reassign", "cancel")
    assert harness.there.records["orders", 0].replicas == (1, 2)
    harness.play("reassign", "cancel")
    assert harness.stderr == "0 moves cancelled\n"


def test_colocated_topics_follow_their_owner(harness: ClusterCommandRunner) -> None:
    harness.there.records = {("orders", 0): led_partition(1, 2), ("__acks.orders", 0): led_partition(1, 2)}
    assert [row["topic"] for row in harness.play("reassign", "--remove-broker", "2", "--add-broker", "3")] == ["orders"]
    harness.there.records["__acks.orders", 0] = MOVING
    harness.play("reassign", "cancel")
    assert harness.stderr == "1 move cancelled\n"
    assert harness.there.records["__acks.orders", 0] == MOVING


def test_a_throttle_can_be_set_and_removed_separately(harness: ClusterCommandRunner) -> None:
    harness.play("reassign", "throttle", "20")
    assert "20 MB/s" in harness.stderr
    harness.play("reassign", "throttle", "off")
    assert [value for _, _, _, value in harness.there.throttles] == ["20000000", None]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--topic", "orders"],
        ["--to", "1,2"],
        ["--topic", "orders", "--to", "one"],
        ["--topic", "orders", "--to", "1,2", "--add-broker", "3"],
        ["--plan", "/nowhere/plan.json"],
        ["--add-broker", "3", "--throttle", "-1"],
        ["--add-broker", "3", "--throttle", "nan"],
        ["--add-broker", "3", "status"],
        ["--server", "127.0.0.1:1", "cancel"],
        ["throttle"],
        ["throttle", "fast"],
    ],
)
def test_wrong_usage_is_rejected_before_a_request_is_sent(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "reassign", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
