"""`headrace subscription`: create, show, pull, settle, seek and delete."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.unit.client.simulated_server import client, start_broker

from headrace.cli.main import main
from headrace.cli.queues.subscription import parse_position
from headrace.client.admin.subscription_admin import END, START, Position
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.produce.producer import Producer
from headrace.testkit.world import World


class SubscriptionCommandRunner:
    """Runs commands against a broker with the topic orders, which contains a, b and c."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.world = World(seed=1)
        self._capsys = capsys
        monkeypatch.setattr("headrace.cli.queues.subscription.with_cluster", self.with_cluster)
        self.world.run(self._prepare())

    def run(self, *arguments: str) -> list[dict[str, Any]]:
        """A command that works; what it prints."""
        assert main(["subscription", *arguments]) == 0
        self.stdout, self.stderr = self._capsys.readouterr()
        return [json.loads(line) for line in self.stdout.splitlines()] if "table" not in arguments else []

    def fail(self, *arguments: str) -> str:
        """A command that does not; what it says."""
        assert main(["subscription", *arguments]) != 0
        return self._capsys.readouterr().err

    def with_cluster(self, _server: str, work: Callable[[Cluster], Awaitable[Any]]) -> Any:
        async def scenario() -> Any:
            async with client(self.world) as cluster:
                return await work(cluster)

        return self.world.run(scenario())

    async def _prepare(self) -> None:
        await start_broker(self.world)
        async with client(self.world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 2))
            async with Producer(cluster) as producer:
                for value in (b"a", b"b", b"c"):
                    await producer.publish("orders", value, partition=0, key=b"k", headers=[("h", b"1")])


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[SubscriptionCommandRunner]:
    harness = SubscriptionCommandRunner(monkeypatch, capsys)
    yield harness
    harness.world.close()


def test_a_subscription_is_created_and_shown(harness: SubscriptionCommandRunner) -> None:
    rows = harness.run("create", "orders", "billing")
    assert rows == [
        {"topic": "orders", "partition": 0, "floor": 0},
        {"topic": "orders", "partition": 1, "floor": 0},
    ]
    assert harness.run("create", "orders", "audit", "--at", "end")[0]["floor"] == 3
    listed = [(row["subscription"], row["topic"], row["partitions"], row["backlog"]) for row in harness.run("list")]
    assert listed == [("audit", "orders", 2, 0), ("billing", "orders", 2, 3)]
    described = harness.run("describe", "billing")
    assert [(row["partition"], row["floor"], row["end"], row["backlog"]) for row in described] == [
        (0, 0, 3, 3),
        (1, 0, 0, 0),
    ]
    assert described[0]["oldest"] is not None
    assert described[1]["oldest"] is None


def test_output_can_be_a_table(harness: SubscriptionCommandRunner) -> None:
    harness.run("create", "orders", "billing", "--at", "start")
    harness.run("list", "-o", "table")
    assert harness.stdout.splitlines()[0].split() == [
        *("SUBSCRIPTION", "TOPIC", "PARTITIONS", "BACKLOG", "LEASED", "WAITING", "DYING", "OLDEST")
    ]
    harness.run("pull", "orders", "billing", "-o", "table")
    heading, line = harness.stdout.splitlines()
    assert heading.split() == ["RECEIPT", "ATTEMPT", "KEY", "VALUE"]
    assert line.split()[1:] == ["1", "k", "a"]


def test_configs_can_be_set_at_creation(harness: SubscriptionCommandRunner) -> None:
    harness.run("create", "orders", "billing", "--at", "start", "--set", "headrace.key.concurrency=1")
    assert [row["value"] for row in harness.run("pull", "orders", "billing", "-n", "10")] == ["a"]
    message = harness.fail("create", "orders", "x", "--set", "headrace.nonsense=1")
    assert "headrace.nonsense" in message
    assert "docs/queues.md describes all settings" in message


def test_describe_shows_the_settings(harness: SubscriptionCommandRunner) -> None:
    harness.run("create", "orders", "billing", "--set", "headrace.key.concurrency=1")
    assert [row["configs"] for row in harness.run("describe", "billing")] == [{"headrace.key.concurrency": "1"}] * 2
    assert harness.run("describe", "billing", "--configs")[0]["configs"]["share.delivery.count.limit"] is not None
    harness.run("describe", "billing", "-o", "table")
    assert harness.stdout.splitlines()[-1].split() == ["orders", "headrace.key.concurrency", "1"]
    harness.run("create", "orders", "audit")
    harness.run("describe", "audit", "-o", "table")
    assert harness.stderr == "all settings have their defaults; --configs shows them\n"


def test_create_says_what_it_did_to_an_existing_subscription(harness: SubscriptionCommandRunner) -> None:
    harness.run("create", "orders", "billing", "--at", "start")
    assert harness.stderr == "subscription billing of orders created\n"
    harness.run("create", "orders", "billing")
    assert harness.stderr == "subscription billing of orders existed already: position and settings kept\n"
    (row, _) = harness.run("create", "orders", "billing", "--set", "headrace.key.concurrency=1")
    assert row["floor"] == 0
    assert "settings changed to headrace.key.concurrency=1; position kept" in harness.stderr


def test_pulled_messages_are_settled_by_their_receipts(harness: SubscriptionCommandRunner) -> None:
    harness.run("create", "orders", "billing", "--at", "start")
    first, second, third = harness.run("pull", "orders", "billing", "-n", "10", "--wait", "1s", "--lease", "10m")
    assert (first["value"], first["key"], first["headers"]) == ("a", "k", [["h", "1"]])
    assert (first["id"], first["attempt"]) == ("orders:0:0", 1)
    harness.run("ack", "billing", first["receipt"])
    assert "1 of 1 message settled" in harness.stderr
    harness.run("ack", "billing", second["receipt"], "--nack", "--delay", "1h", "--reason", "busy")
    harness.run("ack", "billing", third["receipt"], "--reject", "--reason", "broken")
    states = [harness.run("status", f"orders:0:{offset}")[0] for offset in range(3)]
    assert [(row["state"], row["how"]) for row in states][:2] == [("settled", "ack"), ("waiting", None)]
    assert (states[1]["reason"], states[1]["attempts"]) == ("busy", 1)
    assert states[2]["state"] in ("dying", "settled")
    message = harness.fail("ack", "billing", first["receipt"])
    assert "0 of 1 message settled" in message
    assert "orders:0:0:" in message


def test_a_pull_can_ack_at_once(harness: SubscriptionCommandRunner) -> None:
    harness.run("create", "orders", "billing", "--at", "start")
    assert len(harness.run("pull", "orders", "billing", "-n", "10", "--ack")) == 3
    assert harness.run("pull", "orders", "billing") == []
    assert [row["backlog"] for row in harness.run("list")] == [0]


def test_an_empty_pull_is_reported(harness: SubscriptionCommandRunner) -> None:
    harness.run("create", "orders", "billing", "--at", "end")
    assert harness.run("pull", "orders", "billing") == []
    assert "no message is available" in harness.stderr


def test_a_pull_with_a_mistyped_name_creates_no_subscription(harness: SubscriptionCommandRunner) -> None:
    assert "there is no subscription 'biling'" in harness.fail("pull", "orders", "biling")
    assert harness.run("list") == []


def test_peek_leases_nothing(harness: SubscriptionCommandRunner) -> None:
    harness.run("create", "orders", "billing", "--at", "start")
    harness.run("pull", "orders", "billing")
    rows = harness.run("peek", "orders", "billing", "-n", "2")
    assert [(row["id"], row["state"], row["value"]) for row in rows] == [
        ("orders:0:0", "leased", "a"),
        ("orders:0:1", "ready", "b"),
    ]
    assert len(harness.run("peek", "orders", "billing")) == 3


def test_seek_requires_confirmation(harness: SubscriptionCommandRunner) -> None:
    harness.run("create", "orders", "billing", "--at", "end")
    assert "Use --yes" in harness.fail("seek", "orders", "billing", "--to", "start")
    assert harness.run("seek", "orders", "billing", "--to", "start", "--dry-run")[0]["floor"] == 3
    assert harness.run("seek", "orders", "billing", "--to", "1", "-p", "0", "--yes") == [
        {"topic": "orders", "partition": 0, "floor": 1}
    ]
    assert harness.run("seek", "orders", "billing", "--to", "@0", "--yes")[0]["floor"] == 0


def test_delete_requires_confirmation(harness: SubscriptionCommandRunner) -> None:
    harness.run("create", "orders", "billing", "--at", "start")
    assert "Use --yes" in harness.fail("delete", "orders", "billing")
    harness.run("delete", "orders", "billing", "--dry-run")
    assert "would be deleted; 3 messages" in harness.stderr
    harness.run("delete", "orders", "billing", "--yes")
    assert harness.run("list") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("describe", "nobody"), "`headrace subscription list` shows"),
        (("seek", "orders", "nobody", "--to", "end", "--yes"), "`headrace subscription list` shows"),
        (("create", "nowhere", "billing"), "`headrace topic list` shows"),
        (("create", "orders", "billing", "--at", "-5"), "is not a position"),
        (("create", "orders", "billing", "--at", "2h"), "2h-ago"),
        (("create", "orders", "billing", "--at", "@noon"), "is not a time"),
        (("create", "orders", "billing", "--at", "soon-ago"), "not a duration"),
        (("create", "orders", "billing", "--at", "99"), "is not between 0 and"),
        (("ack", "billing", "orders:0:1"), "is not a receipt"),
        (("ack", "billing", "orders:0:1/1/0/m", "--nack", "--reject"), "exclude each other"),
        (("ack", "billing", "orders:0:1/1/0/m", "--delay", "1s"), "--delay requires --nack"),
        (("status", "orders"), "is not a message id"),
        (("status", "orders:0:99"), "message 99 does not exist"),
    ],
)
def test_errors_are_one_line(harness: SubscriptionCommandRunner, arguments: tuple[str, ...], message: str) -> None:
    harness.run("create", "orders", "other")
    output = harness.fail(*arguments)
    assert output.startswith("error: ")
    assert message in output


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("start", Position(START)),
        ("latest", Position(END)),
        ("17", Position(17)),
        ("@1000", Position(timestamp_ms=1000)),
        ("2s-ago", Position(timestamp_ms=8000)),
    ],
)
def test_positions_are_parsed(text: str, position: Position) -> None:
    assert parse_position(text, 10_000) == position
