"""A queue of a real broker process: kill -9 loses no message and redelivers no acked one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from tests.integration.conftest import StartBroker
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster, connect
from headrace.client.produce.producer import Producer
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.client.queues.subscription import Subscription
from headrace.model.errors import InvalidRecordState

MESSAGES = 2000
KILLS = 3


async def prepare(cluster: Cluster) -> None:
    await TopicAdmin(cluster).create(NewTopic("jobs", 3))
    await SubscriptionAdmin(cluster).create("jobs", "workers", Position(START))
    async with Producer(cluster) as producer:
        deliveries = [await producer.submit("jobs", b"%d" % number) for number in range(MESSAGES)]
        for delivery in deliveries:
            await delivery


async def work(cluster: Cluster, acked: set[bytes], back: set[bytes], rest: asyncio.Event) -> None:
    """One worker: it leases messages, acks all except some first deliveries, and records the results."""
    async with Subscription(cluster, "jobs", "workers", 3.0) as subscription:
        while not rest.is_set():
            messages = await subscription.lease(20, wait_seconds=0.5)
            back |= acked & {message.value or b"" for message in messages}
            kept = [message for at, message in enumerate(messages) if at % 7 or message.attempt > 1]
            refused = {one.receipt for one in await subscription.ack(kept)}
            acked |= {message.value or b"" for message in kept if message.receipt not in refused}


def test_acks_survive_kills_and_all_messages_are_delivered(start_broker: StartBroker) -> None:
    broker = start_broker()
    asyncio.run(play(broker))


async def play(broker: BrokerProcess) -> None:
    acked: set[bytes] = set()
    back: set[bytes] = set()
    rest = asyncio.Event()
    async with connect(broker.address) as cluster, asyncio.TaskGroup() as group:
        await prepare(cluster)
        for _ in range(4):
            group.create_task(work(cluster, acked, back, rest))
        for number in range(KILLS):
            wanted = len(acked) + MESSAGES // 6
            while len(acked) < wanted:
                await asyncio.sleep(0.01)
            broker.kill()
            await asyncio.to_thread(broker.start)
            assert len(acked) < MESSAGES, f"all was done before kill {number}"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(acked) < MESSAGES:
                await asyncio.sleep(0.1)
        rest.set()
    assert not back, "messages were delivered after they had been acked"
    assert acked == {b"%d" % number for number in range(MESSAGES)}
    async with connect(broker.address) as cluster:
        assert {one.backlog for one in await SubscriptionAdmin(cluster).describe("workers")} == {0}


def test_a_receipt_from_before_a_kill_is_rejected_and_its_message_redelivered(start_broker: StartBroker) -> None:
    broker = start_broker()

    async def take() -> LeasedMessage:
        async with connect(broker.address) as cluster:
            await TopicAdmin(cluster).create(NewTopic("jobs", 1))
            await SubscriptionAdmin(cluster).create("jobs", "workers", Position(START))
            async with Producer(cluster) as producer:
                await producer.publish("jobs", b"done")
                await producer.publish("jobs", b"open")
            subscription = Subscription(cluster, "jobs", "workers")
            done, left = await subscription.lease(2, wait_seconds=5)
            assert await subscription.ack([done]) == []
            return left

    async def go_on(left: LeasedMessage) -> None:
        async with connect(broker.address) as cluster, Subscription(cluster, "jobs", "workers") as subscription:
            (again,) = await subscription.lease(10, wait_seconds=5)
            assert (again.value, again.attempt) == (b"open", 1)
            (refused,) = await subscription.ack([left])
            assert isinstance(refused.error, InvalidRecordState)
            assert await subscription.ack([again]) == []
            assert await subscription.lease(10) == []

    left = asyncio.run(take())
    broker.kill()
    broker.start()
    asyncio.run(go_on(left))


def test_the_command_line_creates_pulls_and_acks(start_broker: StartBroker) -> None:
    broker = start_broker()
    headrace = str(Path(sys.executable).with_name("headrace"))

    def run(*arguments: str, stdin: str = "") -> list[dict[str, object]]:
        command = [headrace, *arguments, "--server", broker.address]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=True, timeout=60)
        return [json.loads(line) for line in done.stdout.splitlines()]

    run("topic", "create", "jobs")
    run("subscription", "create", "jobs", "workers", "--at", "start")
    subprocess.run(
        [headrace, "produce", "jobs", "--server", broker.address], input="a\nb\n", text=True, check=True, timeout=60
    )
    (first,) = run("subscription", "pull", "jobs", "workers", "--wait", "5s")
    assert first["value"] == "a"
    run("subscription", "ack", "workers", str(first["receipt"]))
    (second,) = run("subscription", "pull", "jobs", "workers", "--wait", "5s", "--ack")
    assert second["value"] == "b"
    (row,) = run("subscription", "list")
    assert row["backlog"] == 0
