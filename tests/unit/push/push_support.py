"""A simulated broker with a subscription, and a scripted webhook receiver."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import client, start_broker

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.produce.producer import Producer
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.push.webhook import AcknowledgeType, DeliveryOutcome
from headrace.testkit.world import World
from headrace.wire.messages.queues import DescribedPush

WELL = DeliveryOutcome(AcknowledgeType.ACK, is_healthy=True)
FAILED = DeliveryOutcome(AcknowledgeType.NACK, is_healthy=False, error="HTTP 500")
ABSENT = DeliveryOutcome(AcknowledgeType.UNDELIVERED, is_healthy=False, error="cannot connect")

Scenario = Callable[[Cluster, World], Awaitable[None]]


def with_queue(scenario: Scenario, *, partitions: int = 1, **configs: str) -> None:
    """Play against a broker with a topic and a subscription that begins at its start; configs are the subscription's,
    with underscores for dots."""

    async def play(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("jobs", partitions))
            named = {name.replace("_", "."): value for name, value in configs.items()}
            await SubscriptionAdmin(cluster).create("jobs", "workers", Position(START), named)
            await scenario(cluster, world)

    in_world(play)


async def put(cluster: Cluster, *values: bytes, key: bytes | None = b"k", topic: str = "jobs") -> None:
    async with Producer(cluster) as producer:
        for value in values:
            await producer.publish(topic, value, partition=0, key=key)


async def backlog(cluster: Cluster, name: str = "workers") -> int:
    return sum(one.backlog for one in await SubscriptionAdmin(cluster).describe(name))


async def leased(cluster: Cluster, name: str = "workers") -> int:
    return sum(one.leased for one in await SubscriptionAdmin(cluster).describe(name))


async def until(true: Callable[[], bool], seconds: float = 600.0) -> None:
    """In virtual time, which costs nothing."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)


def push_of(**more: object) -> DescribedPush:
    values: dict[str, object] = {
        "subscription": "workers",
        "url": "http://receiver.test/hook",
        "secret": "s3cret",
        "concurrency": 8,
        "rate": 0,
        "timeout_ms": 10_000,
        "backoff_ms": 0,
        "topics": [],
    }
    return DescribedPush(**{**values, **more})  # type: ignore[arg-type]


class WebhookReceiver:
    """Responds to each message after `seconds` as `partition_response` says."""

    def __init__(self) -> None:
        self.got: list[LeasedMessage] = []
        self.by_key: dict[bytes | None, list[bytes | None]] = defaultdict(list)
        self.answer: Callable[[LeasedMessage], DeliveryOutcome] = lambda _message: WELL
        self.seconds = 0.0
        self.in_flight = self.most_in_flight = 0
        self.is_closed = False

    @property
    def values(self) -> list[bytes | None]:
        return [message.value for message in self.got]

    async def send(self, _push: DescribedPush, message: LeasedMessage) -> DeliveryOutcome:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.in_flight -= 1
        outcome = self.answer(message)
        if outcome.verdict is not AcknowledgeType.UNDELIVERED:
            self.got.append(message)
        if outcome.verdict is AcknowledgeType.ACK:
            self.by_key[message.key].append(message.value)
        return outcome

    async def close(self) -> None:
        self.is_closed = True
