"""A simulated member of a subscription, which leases and settles messages with Headrace's own requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.wire.batches.batch import read_records, split_batches
from headrace.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from headrace.wire.messages.queues import (
    AlterSubscriptionsPartition,
    AlterSubscriptionsPartitionResponse,
    AlterSubscriptionsRequest,
    AlterSubscriptionsTopic,
    DescribedSubscription,
    DescribeSubscriptionsRequest,
    DescribeSubscriptionsTopic,
    LeasePartitionResponse,
    LeaseRequest,
    LeaseResponse,
    LeaseTopic,
    MessageStatusRequest,
    MessageStatusResponse,
    SettleItem,
    SettlePartition,
    SettlePartitionResponse,
    SettleRequest,
    SettleTopic,
    SubscriptionStatus,
)

TOPIC = "jobs"
WORKERS = "workers"
GAP, ACK, NACK, REJECT, EXTEND, RELEASE = range(6)
CREATE, SEEK, DELETE = range(3)
LATEST, EARLIEST = -1, -2
_GROUP_RESOURCE = 32


class LeasedRecord(NamedTuple):
    """One leased message, with its receipt."""

    partition: int
    offset: int
    attempt: int
    epoch: int
    value: bytes


class SubscriptionMember:
    def __init__(
        self, simulated_broker: SimulatedBroker, name: str = "m", subscription: str = WORKERS, topic: str = TOPIC
    ) -> None:
        self.simulated_broker = simulated_broker
        self.name = name
        self.subscription = subscription
        self.topic = topic

    def request(
        self, count: int = 100, *, wait_ms: int = 0, partitions: Sequence[int] = (0,), **options: Any
    ) -> LeaseRequest:
        return LeaseRequest(
            subscription=self.subscription,
            member=self.name,
            max_wait_ms=wait_ms,
            max_messages=count,
            topics=[LeaseTopic(name=self.topic, partitions=[*partitions])],
            **options,
        )

    async def request_leases(
        self, count: int = 100, *, wait_ms: int = 0, partitions: Sequence[int] = (0,), **options: Any
    ) -> list[LeasePartitionResponse]:
        """Send a Lease; return the partitions of the response."""
        request = self.request(count, wait_ms=wait_ms, partitions=partitions, **options)
        response: LeaseResponse = await self.simulated_broker.send(request, 0)
        assert response.error_code == 0, response.error_message
        return [answer for topic in response.topics for answer in topic.partitions]

    async def lease(
        self, count: int = 100, *, wait_ms: int = 0, partitions: Sequence[int] = (0,), **options: Any
    ) -> list[LeasedRecord]:
        return leased_records(await self.request_leases(count, wait_ms=wait_ms, partitions=partitions, **options))

    async def settle(self, messages: Sequence[LeasedRecord], how: int = ACK, **options: object) -> list[int]:
        """Settle messages; return an error code for each."""
        by_place: dict[tuple[int, int], list[LeasedRecord]] = {}
        for one in messages:
            by_place.setdefault((one.partition, one.epoch), []).append(one)
        codes: dict[LeasedRecord, int] = {}
        for (partition, epoch), some in by_place.items():
            items = [SettleItem(one.offset, one.offset, one.attempt, how, **options) for one in some]  # type: ignore[arg-type]
            response = await self.settle_items(items, partition=partition, epoch=epoch)
            rejected = {item.index: item.error_code for item in response.refused}
            codes |= {one: response.error_code or rejected.get(at, 0) for at, one in enumerate(some)}
        return [codes[one] for one in messages]

    async def settle_items(self, items: list[SettleItem], *, partition: int = 0, epoch: int) -> SettlePartitionResponse:
        request = SettleRequest(
            subscription=self.subscription,
            member=self.name,
            topics=[SettleTopic(name=self.topic, partitions=[SettlePartition(partition, epoch, items)])],
        )
        response = await self.simulated_broker.send(request, 0)
        assert response.error_code == 0, response.error_message
        answer: SettlePartitionResponse = response.topics[0].partitions[0]
        return answer

    async def ack(self, messages: Sequence[LeasedRecord]) -> None:
        assert await self.settle(messages) == [0] * len(messages)


def leased_records(responses: Sequence[LeasePartitionResponse]) -> list[LeasedRecord]:
    """Return every leased message with its value from the response's batches."""
    found: list[LeasedRecord] = []
    for response in responses:
        assert response.error_code == 0, response.error_message
        values = {
            record.offset: record.value or b""
            for batch, header in split_batches(bytes(response.records or b""))  # type: ignore[call-overload]
            if not header.is_control
            for record in read_records(batch, header, 1 << 24)
        }
        for one in response.leased:
            found += [
                LeasedRecord(response.partition_index, offset, one.attempt, response.lease_epoch, values[offset])
                for offset in range(one.first, one.last + 1)
                if offset in values
            ]
    return found


def values_of(messages: Sequence[LeasedRecord]) -> list[bytes]:
    return [message.value for message in messages]


async def alter(
    simulated_broker: SimulatedBroker,
    action: int,
    *,
    subscription: str = WORKERS,
    topic: str = TOPIC,
    partition: int = 0,
    offset: int = EARLIEST,
    timestamp_ms: int = -1,
) -> AlterSubscriptionsPartitionResponse:
    requested = AlterSubscriptionsPartition(partition, offset, timestamp_ms)
    topics = [AlterSubscriptionsTopic(name=topic, partitions=[requested])]
    response = await simulated_broker.send(
        AlterSubscriptionsRequest(subscription=subscription, action=action, topics=topics), 0
    )
    assert response.error_code == 0, response.error_message
    answer: AlterSubscriptionsPartitionResponse = response.topics[0].partitions[0]
    return answer


async def subscribe(
    simulated_broker: SimulatedBroker, topic: str = TOPIC, partitions: int = 1, subscription: str = WORKERS
) -> None:
    """Create a topic and a subscription that begins with its first message."""
    await simulated_broker.create_topic(topic, partitions)
    for partition in range(partitions):
        response = await alter(simulated_broker, CREATE, subscription=subscription, topic=topic, partition=partition)
        assert response.error_code == 0, response.error_message


async def describe(
    simulated_broker: SimulatedBroker, *names: str, topic: str = TOPIC, partition: int = 0
) -> list[DescribedSubscription]:
    topics = [DescribeSubscriptionsTopic(name=topic, partitions=[partition])]
    response = await simulated_broker.send(
        DescribeSubscriptionsRequest(subscriptions=[*names] or None, topics=topics), 0
    )
    (answer,) = response.topics[0].partitions
    assert answer.error_code == 0, answer.error_message
    described: list[DescribedSubscription] = answer.subscriptions
    return described


async def status(
    simulated_broker: SimulatedBroker, offset: int, *, topic: str = TOPIC, partition: int = 0
) -> list[SubscriptionStatus]:
    response: MessageStatusResponse = await simulated_broker.send(MessageStatusRequest(topic, partition, [offset]), 0)
    assert response.error_code == 0, response.error_message
    return response.statuses


async def configure(simulated_broker: SimulatedBroker, subscription: str = WORKERS, **configs: str) -> None:
    """Set configs by their Kafka names, with underscores instead of dots."""
    changes = [
        IncrementalAlterableConfig(name=name.replace("_", "."), config_operation=0, value=v)
        for name, v in configs.items()
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=_GROUP_RESOURCE, resource_name=subscription, configs=changes
    )
    response = await simulated_broker.send(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert response.responses[0].error_code == 0, response.responses[0].error_message
