"""Dead letters of a real broker that is killed while it writes and redrives them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, wait_until
from tests.integration.records import create_topic, produce
from tests.integration.test_cli import Run, rows, run

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.cluster import connect
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.client.queues.subscription import Subscription

__all__ = ["run"]  # the fixture

COUNT = 40


def subscribe(broker: BrokerProcess) -> None:
    async def work() -> None:
        async with connect(broker.address) as cluster:
            await SubscriptionAdmin(cluster).create("orders", "workers", Position(START))

    asyncio.run(work())


def lease_all(broker: BrokerProcess, count: int, *, rejected: Iterable[bytes] = ()) -> list[bytes]:
    """Lease messages, reject some of them and ack the others; return their values."""
    refused_values = set(rejected)

    async def work() -> list[bytes]:
        messages: list[LeasedMessage] = []
        async with connect(broker.address) as cluster, Subscription(cluster, "orders", "workers") as workers:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(messages) < count:
                    messages += await workers.lease(count, wait_seconds=5)
            assert await workers.reject([m for m in messages if m.value in refused_values], "it smells") == []
            assert await workers.ack([m for m in messages if m.value not in refused_values]) == []
        return [message.value or b"" for message in messages]

    return asyncio.run(work())


def dead_letters(run: Run) -> Sequence[dict[str, object]]:
    return rows(run("dlq", "list", "orders"))


def test_a_rejected_message_becomes_one_dead_letter_and_is_redriven_once(broker: BrokerProcess, run: Run) -> None:
    create_topic(broker.address, "orders", 2)
    subscribe(broker)
    values = [b"%d" % number for number in range(COUNT)]
    produce(broker.address, "orders", list(values))
    bad = values[::2]
    assert sorted(lease_all(broker, COUNT, rejected=bad), key=int) == values
    broker.kill()
    broker.start()
    wait_until(lambda: bool(rows(run("dlq", "list"))), "the topic of dead letters is there")
    wait_until(lambda: len(dead_letters(run)) >= len(bad), "all are dead letters")
    assert sorted((str(row["value"]).encode() for row in dead_letters(run)), key=int) == bad
    assert {row["reason"] for row in dead_letters(run)} == {"it smells"}

    first = str(dead_letters(run)[0]["id"])
    run("dlq", "redrive", "orders", first)
    assert len(lease_all(broker, 1)) == 1
    broker.kill()
    broker.start()
    assert run("dlq", "redrive", "orders", "--all", "--yes").stderr == f"{len(bad) - 1} of {len(bad) - 1} redriven\n"
    assert dead_letters(run) == []
    assert len(set(lease_all(broker, len(bad) - 1))) == len(bad) - 1
    assert rows(run("dlq", "list")) == [{"topic": "orders.dlq", "dead_letters": 0}]
