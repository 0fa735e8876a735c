"""`headrace group reset` against a real broker: dry run by default, and rejected while the group has members."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.process import BrokerProcess, wait_until
from tests.integration.records import consume, consumer_of, create_topic, produce
from tests.integration.test_cli import Run, rows, run

__all__ = ["run"]  # the fixture


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """Produce ten records to each of two partitions."""
    create_topic(broker.address, "orders", 2)
    for partition in (0, 1):
        produce(broker.address, "orders", [b"%d" % number for number in range(10)], partition)
    return "orders"


def places(run: Run, group: str = "billing") -> dict[int, int]:
    return {row["partition"]: row["committed"] for row in rows(run("group", "lag", group))}


def test_offsets_are_reset_only_with_execute(run: Run, topic: str) -> None:
    run("consume", topic, "-g", "billing", "-n", "20")
    trial = run("group", "reset", "billing", "--to", "earliest", "--all-topics")
    assert [(row["partition"], row["now"], row["new"], row["lag"]) for row in rows(trial)] == [
        (0, 10, 0, 10),
        (1, 10, 0, 10),
    ]
    assert "no changes made" in trial.stderr
    assert places(run) == {0: 10, 1: 10}
    assert (
        "2 offsets committed"
        in run("group", "reset", "billing", "--to", "earliest", "--all-topics", "--execute").stderr
    )
    assert places(run) == {0: 0, 1: 0}


def test_every_kind_of_position(run: Run, topic: str) -> None:
    def reset(*options: str) -> dict[int, int]:
        run("group", "reset", "billing", *options, "--execute")
        return places(run)

    assert reset("--to", "latest", "--topic", topic) == {0: 10, 1: 10}
    assert reset("--shift", "-3", "--topic", f"{topic}:1") == {0: 10, 1: 7}
    assert reset("--to-offset", "4", "--all-topics") == {0: 4, 1: 4}
    assert reset("--to", "1h-ago", "--topic", topic) == {0: 0, 1: 0}
    assert reset("--to", "2100-01-01", "--topic", f"{topic}:0") == {0: 10, 1: 0}


def test_an_offset_out_of_range_is_moved_into_the_log_with_a_note(run: Run, topic: str) -> None:
    run("topic", "trim", topic, "--before", "2", "--yes")
    low, high = (
        rows(run("group", "reset", "billing", "--to-offset", offset, "--topic", f"{topic}:0"))[0]
        for offset in ("1", "99")
    )
    assert (low["new"], high["new"]) == (2, 10)
    assert "before the start" in low["remark"]
    assert "after the end" in high["remark"]


def test_offsets_can_be_exported_and_imported(run: Run, topic: str, tmp_path: Path) -> None:
    run("group", "reset", "billing", "--to-offset", "6", "--topic", topic, "--execute")
    kept = tmp_path / "offsets.csv"
    kept.write_text(run("group", "reset", "billing", "--all-topics", "--shift", "0", "--export").stdout)
    assert kept.read_text().splitlines() == [f"{topic},0,6", f"{topic},1,6"]
    run("group", "reset", "billing", "--to", "latest", "--all-topics", "--execute")
    run("group", "reset", "billing", "--from-file", str(kept), "--execute")
    assert places(run) == {0: 6, 1: 6}


def test_resetting_an_active_group_is_rejected_and_its_members_are_named(
    run: Run, topic: str, broker: BrokerProcess
) -> None:
    with consumer_of(broker.address, "billing", **{"client.id": "the-reader"}) as consumer:
        consumer.subscribe([topic])
        consume(consumer, 1)
        for options in ([], ["--execute"]):
            refused = run("group", "reset", "billing", "--to", "earliest", "--topic", topic, *options, expect=1)
            assert "the-reader" in refused.stderr
            assert "stop its members first" in refused.stderr
    wait_until(lambda: rows(run("group", "list"))[0]["state"] == "Empty", "the reader has left")
    run("group", "reset", "billing", "--to", "earliest", "--topic", topic, "--execute")


def test_missing_groups_and_topics_are_rejected(run: Run, topic: str) -> None:
    assert "`headrace topic list`" in run("group", "reset", "g", "--to", "latest", "--topic", "nope", expect=1).stderr
    run("group", "reset", "g", "--to", "latest", "--topic", f"{topic}:5", expect=1)
