"""`headrace dlq`: list, show, redrive and discard dead letters."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.queues.test_dead_letters import die, values
from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import client, start_broker

from headrace.cli.main import main
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.queues.dead_letters import DeadLetterQueue, DeadLetterSelection
from headrace.model.ids import MessageId
from headrace.testkit.world import World

FIRST = MessageId("orders.dlq", 0, 0)


class DlqCommandRunner:
    """Runs each command in a new world, where a, bb and c are dead letters of orders, and FIRST is discarded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.orders: list[bytes | None] = []
        self.left = 0
        self._deaths = True
        monkeypatch.setattr("headrace.cli.queues.dead_letters.with_cluster", self._with_cluster)

    def run(self, *arguments: str) -> int:
        return main(["dlq", *arguments])

    def run_where_nothing_died(self, *arguments: str) -> int:
        self._deaths = False
        return self.run(*arguments)

    def _with_cluster(self, _server: str, work: Callable[[Cluster], Awaitable[Any]]) -> Any:
        async def scenario(world: World) -> Any:
            broker = await start_broker(world)
            async with client(world) as cluster:
                await TopicAdmin(cluster).create(NewTopic("orders", 1))
                if not self._deaths:
                    return await work(cluster)
                await die(broker, cluster, b"a", b"bb", b"c")
                queue = DeadLetterQueue(cluster, "orders")
                await queue.discard(DeadLetterSelection(ids=[FIRST]))
                result = await work(cluster)
                self.orders, self.left = (await values(cluster))[3:], await queue.count()
                return result

        return in_world(scenario)


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> DlqCommandRunner:
    return DlqCommandRunner(monkeypatch)


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_topics_with_dead_letters_are_listed(harness: DlqCommandRunner, capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.run("list") == 0
    assert rows(capsys) == [{"topic": "orders.dlq", "dead_letters": 2}]


def test_the_dead_letters_of_a_topic_are_listed(harness: DlqCommandRunner, capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.run("list", "orders") == 0
    listed = rows(capsys)
    assert [(row["id"], row["value"]) for row in listed] == [("orders.dlq:0:1", "bb"), ("orders.dlq:0:2", "c")]
    assert listed[0]["origin"] == "orders:0:1"
    assert (listed[0]["reason"], listed[0]["attempts"], listed[0]["subscription"]) == ("boom", 5, "workers")


def test_settled_dead_letters_are_listed_on_request(
    harness: DlqCommandRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert harness.run("list", "orders", "--settled", "-n", "2") == 0
    assert [(row["id"], row["state"]) for row in rows(capsys)] == [(str(FIRST), "settled"), ("orders.dlq:0:1", "ready")]


def test_a_list_can_be_filtered_and_printed_as_a_table(
    harness: DlqCommandRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert harness.run("list", "orders", "--filter", "header.type = 'c'", "-o", "table") == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == ["ID", "STATE", "DIED", "ATTEMPTS", "REDRIVEN", "SUBSCRIPTION", "REASON", "VALUE"]
    assert line.startswith("orders.dlq:0:2  ready")


def test_show_prints_the_complete_dead_letter(harness: DlqCommandRunner, capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.run("show", "orders", "0:1") == 0
    (row,) = rows(capsys)
    assert (row["id"], row["state"], row["key"], row["value"]) == ("orders.dlq:0:1", "ready", "k", "bb")
    assert ["type", "b"] in row["headers"]


@pytest.mark.parametrize("chosen", [("orders.dlq:0:1",), ("0:1",), ("--filter", "header.type = 'b'", "--yes")])
def test_the_selected_dead_letters_are_redriven(
    harness: DlqCommandRunner, chosen: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert harness.run("redrive", "orders", *chosen, "--to-all") == 0
    assert (harness.orders, harness.left) == ([b"bb"], 1)
    assert capsys.readouterr().err == "1 of 1 redriven\n"


def test_all_remaining_dead_letters_are_redriven(harness: DlqCommandRunner, capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.run("redrive", "orders", "--all", "--to-all", "--yes", "--rate", "100") == 0
    assert (harness.orders, harness.left) == ([b"bb", b"c"], 0)
    assert capsys.readouterr().err == "2 of 2 redriven\n"


def test_a_dead_letter_whose_subscription_is_gone_is_reported_with_the_alternative(
    harness: DlqCommandRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert harness.run("redrive", "orders", "0:1") == 1
    assert (harness.orders, harness.left) == ([], 2)
    output = capsys.readouterr().err
    assert "orders.dlq:0:1 was not settled: topic orders has no subscription workers" in output
    assert "--to-all" in output


def test_a_settled_dead_letter_is_skipped(harness: DlqCommandRunner, capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.run("redrive", "orders", str(FIRST)) == 0
    assert harness.orders == []
    assert "0 of 1 redriven; 1 were settled before, or are being settled by another process" in capsys.readouterr().err


def test_a_dry_run_changes_nothing(harness: DlqCommandRunner, capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.run("redrive", "orders", "--all", "--dry-run") == 0
    assert (harness.orders, harness.left) == ([], 2)
    assert capsys.readouterr().err == "2 of 2 would be redriven\n"
    assert harness.run("discard", "orders", "--all", "--dry-run") == 0
    assert harness.left == 2


def test_the_selected_dead_letters_are_discarded(harness: DlqCommandRunner, capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.run("discard", "orders", "0:2", "--yes") == 0
    assert (harness.orders, harness.left) == ([], 1)
    assert capsys.readouterr().err == "1 of 1 discarded\n"


def test_unsettled_dead_letters_are_reported_and_fail_the_command(
    harness: DlqCommandRunner, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.client.queues.redrive.redrive_count_of", lambda _headers: 3)
    assert harness.run("redrive", "orders", "--all", "--yes") == 1
    output = capsys.readouterr().err
    assert "orders.dlq:0:1 was not settled: it came back 3 times already\n" in output
    assert "0 of 2 redriven\n" in output
    assert "error: 2 dead letters not settled" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "orders"),
        ("list", "orders.dlq"),
        ("redrive", "orders", "--all", "--yes"),
        ("discard", "orders", "--all", "--yes"),
    ],
    ids=" ".join,
)
def test_a_topic_without_dead_letters_is_not_an_error(
    harness: DlqCommandRunner, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert harness.run_where_nothing_died(*arguments) == 0
    assert capsys.readouterr() == ("", "topic orders has no dead letters\n")


@pytest.mark.parametrize("verb", [("show",), ("redrive",), ("discard", "--yes")], ids=" ".join)
def test_ids_of_a_topic_without_dead_letters_are_an_error(
    harness: DlqCommandRunner, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    assert harness.run_where_nothing_died(*verb, "orders", "0:1") == 1
    assert capsys.readouterr().err == "error: topic orders has no dead letters, so the ids do not exist\n"


def test_the_error_names_the_missing_topic_not_its_dead_letter_topic(
    harness: DlqCommandRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert harness.run("list", "ordres") == 1
    assert capsys.readouterr().err.startswith("error: there is no topic 'ordres'")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("redrive", "orders"), "specify exactly one of IDs, --filter and --all"),
        (("redrive", "orders", "0:1", "--all"), "specify exactly one of"),
        (("redrive", "orders", "0:1", "--to-all", "--to", "x"), "--to-all and --to exclude each other"),
        (("discard", "orders"), "specify exactly one of"),
        (("redrive", "orders", "first"), "'orders.dlq:first' is not a message id"),
        (("list", "orders", "--filter", "colour"), "invalid filter at character 1"),
        (("redrive", "orders", "--all"), "Use --yes to confirm"),
        (("discard", "orders", "0:1"), "Use --yes to confirm"),
    ],
)
def test_ambiguous_selections_are_rejected(
    harness: DlqCommandRunner, arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert harness.run(*arguments) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("named", [["orders"], ["orders", "orders.dlq"]])
def test_deleting_a_topic_reports_its_deleted_dead_letters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], named: list[str]
) -> None:
    def with_cluster(_server: str, work: Callable[[Cluster], Awaitable[Any]]) -> Any:
        async def scenario(world: World) -> None:
            broker = await start_broker(world)
            async with client(world) as cluster:
                await TopicAdmin(cluster).create(NewTopic("orders", 1))
                await die(broker, cluster, b"a")
                await work(cluster)
                assert [view.name for view in await TopicAdmin(cluster).list() if not view.internal] == []

        return in_world(scenario)

    monkeypatch.setattr("headrace.cli.topics.topic.with_cluster", with_cluster)
    assert main(["topic", "delete", *named, "--yes"]) == 0
    assert "topic orders.dlq deleted with it" in capsys.readouterr().err
