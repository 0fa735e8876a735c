"""`headrace group reset`: positions, limits and rejected options."""

from __future__ import annotations

import click
import pytest

from headrace.cli.group import parse_partitions, parse_reset_position, plan_resets, read_offsets
from headrace.cli.main import main
from headrace.cli.start_position import FROM_END, FROM_START, StartPosition
from headrace.client.admin.group_admin import PartitionLag
from headrace.client.metadata import TopicPartition

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


class FixedClock:
    def monotonic(self) -> float:
        return 0.0

    def now_ms(self) -> int:
        return 1_700_000_000_000


def lag(target: TopicPartition, committed: int | None = 5) -> PartitionLag:
    return PartitionLag(target, committed, start=3, end=10, member=None)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("earliest", FROM_START),
        ("latest", FROM_END),
        ("1700000000000", StartPosition("time", 1_700_000_000_000)),
        ("2023-11-14T22:13:20Z", StartPosition("time", 1_700_000_000_000)),
        ("1h-ago", StartPosition("time", 1_699_996_400_000)),
        ("99999d-ago", StartPosition("time", 0)),
    ],
)
def test_reset_positions(text: str, where: StartPosition) -> None:
    assert parse_reset_position(text, FixedClock()) == where


@pytest.mark.parametrize("text", ["", "soon", "-ago", "1x-ago", "+5", "now"])
def test_invalid_positions_are_rejected(text: str) -> None:
    with pytest.raises(click.UsageError):
        parse_reset_position(text, FixedClock())


def test_partitions_are_listed_or_all() -> None:
    assert parse_partitions("orders") == ("orders", None)
    assert parse_partitions("orders:0,2") == ("orders", {0, 2})
    for text in ("", ":0", "orders:", "orders:x", "orders:0,", "orders:-1"):
        with pytest.raises(click.UsageError):
            parse_partitions(text)


def test_offsets_outside_the_log_are_clamped_with_a_remark() -> None:
    low, high = plan_resets([lag(FIRST), lag(SECOND)], {FIRST: 1, SECOND: 11})
    assert (low.new, high.new) == (3, 10)
    assert "before the start" in (low.remark or "")
    assert "after the end" in (high.remark or "")
    for place in (3, 10):
        (inside,) = plan_resets([lag(FIRST)], {FIRST: place})
        assert (inside.new, inside.remark) == (place, None)


def test_a_partition_without_a_commit_is_not_shifted() -> None:
    (move,) = plan_resets([lag(FIRST, None)], {})
    assert move.new is None
    assert move.row()["lag"] is None
    assert "no committed offset" in (move.remark or "")


def test_a_row_shows_the_resulting_lag() -> None:
    (move,) = plan_resets([lag(FIRST)], {FIRST: 4})
    row = move.row()
    assert (row["now"], row["new"], row["lag"]) == (5, 4, 6)


def test_offsets_are_read_in_the_format_of_kafkas_tool() -> None:
    lines = ["orders,0,15\n", '"orders",1,4\n', "\n"]
    assert read_offsets(lines) == {FIRST: 15, SECOND: 4}


@pytest.mark.parametrize(
    "lines", [[], ["\n"], ["orders,0"], ["orders,0,-1"], ["orders,x,1"], [",0,1"], ["g,orders,0,1"]]
)
def test_an_invalid_offsets_file_is_rejected(lines: list[str]) -> None:
    with pytest.raises(click.UsageError, match="--from-file"):
        read_offsets(lines)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--topic", "orders"],
        ["--to", "earliest"],
        ["--to", "earliest", "--shift", "1", "--topic", "orders"],
        ["--to", "earliest", "--topic", "orders", "--all-topics"],
        ["--to", "sometime", "--topic", "orders"],
        ["--to-offset", "-1", "--topic", "orders"],
        ["--from-file", "/nowhere.csv"],
    ],
)
def test_wrong_usage_is_a_one_line_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["group", "reset", "g", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
