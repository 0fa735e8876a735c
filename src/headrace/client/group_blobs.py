"""What members of a consumer group tell each other through the coordinator, in the client's own words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from headrace.client.assignors import Subscriber
from headrace.client.metadata import TopicPartition
from headrace.wire import consumer_protocol as wire


def encode_subscription(topics: list[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
    """What a member wants, and what it holds from which generation."""
    return wire.encode_subscription(
        wire.ConsumerProtocolSubscription(topics=topics, owned_partitions=_by_topic(owned), generation_id=generation)
    )


def decode_subscription(data: bytes) -> Subscriber:
    told = wire.decode_subscription(data)
    return Subscriber(told.topics, _flat(told.owned_partitions), told.generation_id)


def encode_assignment(targets: Iterable[TopicPartition]) -> bytes:
    """What a member gets."""
    return wire.encode_assignment(wire.ConsumerProtocolAssignment(assigned_partitions=_by_topic(targets)))


def decode_assignment(data: bytes) -> list[TopicPartition]:
    return _flat(wire.decode_assignment(data).assigned_partitions)


def _by_topic(targets: Iterable[TopicPartition]) -> list[wire.TopicPartition]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(targets):
        topics[topic].append(partition)
    return [wire.TopicPartition(topic=topic, partitions=partitions) for topic, partitions in topics.items()]


def _flat(topics: Iterable[wire.TopicPartition]) -> list[TopicPartition]:
    return [TopicPartition(entry.topic, partition) for entry in topics for partition in entry.partitions]
