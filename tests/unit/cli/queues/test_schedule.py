"""`headrace schedule`, and the delay options of `produce`, against a broker in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.unit.client.simulated_server import client, start_broker

from headrace.cli.main import main
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.fetch.consumer import Consumer
from headrace.testkit.world import World

Run = Callable[..., int]


@pytest.fixture
def world() -> Iterator[World]:
    world = World(seed=1)
    yield world
    world.close()


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command; there is the topic orders."""

    def with_cluster(_server: str, work: Callable[[Cluster], Awaitable[Any]], _timeout_seconds: float = 30.0) -> Any:
        async def scenario() -> Any:
            async with client(world) as cluster:
                return await work(cluster)

        return world.run(scenario())

    async def prepare() -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 1))

    world.run(prepare())
    for module in ("queues.schedule", "topics.produce"):
        monkeypatch.setattr(f"headrace.cli.{module}.with_cluster", with_cluster)
    return lambda *arguments: main([*arguments])


async def read(world: World, count: int) -> list[bytes | None]:
    found = []
    async with client(world) as cluster, Consumer(cluster, ["orders"]) as consumer:
        async for record in consumer:
            found.append(record.value)
            if len(found) == count:
                break
    return found


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_message_is_added_listed_moved_and_delivered(
    run: Run, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("schedule", "add", "orders", "hello", "--delay", "1h", "-k", "c", "-H", "a=1") == 0
    (added,) = rows(capsys)
    assert added == {"id": "__delayed.orders:0:0"}
    assert run("schedule", "list", "orders") == 0
    (listed,) = rows(capsys)
    assert (listed["id"], listed["key"], listed["value"], listed["repeat"]) == (added["id"], "c", "hello", None)
    assert run("schedule", "move", added["id"], "--delay", "1s") == 0
    assert world.run(read(world, 1)) == [b"hello"]
    assert run("schedule", "list", "orders", "-o", "table") == 0
    assert capsys.readouterr().out.split() == ["ID", "DUE", "REPEAT", "KEY", "VALUE"]


def test_a_repeating_message_is_listed_and_cancelled(
    run: Run, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("schedule", "add", "orders", "tick", "--every", "10s") == 0
    assert run("schedule", "add", "orders", "x" * 50, "--cron", "0 9 * * mon-fri", "-o", "table") == 0
    assert run("schedule", "list", "orders", "-n", "2") == 0
    output = capsys.readouterr().out.splitlines()
    assert output[1] == "__delayed.orders:0:1"
    assert [json.loads(line)["repeat"] for line in output[2:]] == ["every 10s", "0 9 * * mon-fri"]
    assert json.loads(output[3])["value"] == "x" * 40 + "..."
    world.run(asyncio.sleep(25))
    assert run("schedule", "cancel", "__delayed.orders:0:0", "__delayed.orders:0:1", "--yes") == 0
    assert world.run(read(world, 2)) == [b"tick", b"tick"]
    capsys.readouterr()
    assert run("schedule", "list", "orders") == 0
    assert rows(capsys) == []
    assert run("schedule", "cancel", "__delayed.orders:0:0", "--yes") == 1
    assert "__delayed.orders:0:0 is not waiting: it was released or cancelled" in capsys.readouterr().err


def test_produce_can_delay_records(run: Run, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("produce", "orders", "later", "--delay", "2s", "--receipts") == 0
    assert rows(capsys) == [{"topic": "__delayed.orders", "partition": 0, "offset": 0}]
    assert run("produce", "orders", "now") == 0
    assert world.run(read(world, 2)) == [b"now", b"later"]


@pytest.mark.parametrize("command", [("schedule", "add"), ("produce",)], ids=" ".join)
def test_the_first_delayed_message_creates_the_topic(
    run: Run, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    assert run(*command, "reports", "run", "--delay", "1h") == 0
    capsys.readouterr()
    assert run("schedule", "list", "reports") == 0
    assert [row["value"] for row in rows(capsys)] == ["run"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("add", "orders", "x"), "specify when"),
        (("add", "orders", "x", "--delay", "soon"), "not a duration"),
        (("add", "orders", "x", "--deliver-at", "2027-01-01T00:00:00"), "has no UTC offset"),
        (("add", "orders", "x", "--delay", "1s", "--deliver-at", "5"), "not both"),
        (("add", "orders", "x", "--every", "1s", "--cron", "* * * * *"), "exclude each other"),
        (("add", "orders", "x", "--cron", "* *"), "fields"),
        (("move", "__delayed.orders:0:0"), "specify when"),
        (("move", "orders:0:0", "--delay", "1s"), "__delayed.TOPIC"),
        (("cancel", "nonsense", "--yes"), "is not a message id"),
        (("cancel", "__delayed.orders:0:0"), "--yes"),
    ],
)
def test_invalid_options_are_rejected_before_a_request_is_sent(
    arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schedule", *arguments]) == 2
    assert expected in capsys.readouterr().err
