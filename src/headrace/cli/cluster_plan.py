"""Plan reassignments: read a plan in Kafka's format, or spread partitions over brokers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.client.cluster_admin import BrokerView, PartitionPlace
from headrace.client.metadata import TopicPartition
from headrace.machines.placement import spread
from headrace.model.broker_record import BrokerRecord
from headrace.model.partition_record import NO_EPOCH

Moves = Mapping[TopicPartition, Sequence[int]]


class PlannedPartition(msgspec.Struct):
    topic: str
    partition: int
    replicas: list[int]


class Plan(msgspec.Struct):
    """The format of kafka-reassign-partitions. `log_dirs` is ignored, because a broker has one data folder."""

    version: int
    partitions: list[PlannedPartition]


def read_plan(data: bytes) -> Moves:
    """Return the replicas per partition, or raise ValueError with a message for the user."""
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except msgspec.MsgspecError as error:
        raise ValueError(f"it is not a plan in the format of kafka-reassign-partitions: {error}") from None
    if plan.version != 1:
        raise ValueError(f"its version is {plan.version}; only version 1 is supported")
    moves = {TopicPartition(planned.topic, planned.partition): planned.replicas for planned in plan.partitions}
    if len(moves) != len(plan.partitions):
        raise ValueError("it contains a partition twice")
    return moves


def spread_over(places: Iterable[PartitionPlace], brokers: Iterable[BrokerView]) -> Moves:
    """Return a small set of moves that spreads these partitions evenly over exactly these brokers."""
    current = {place.target: heading_for(place) for place in places}
    usable = {
        broker.node_id: BrokerRecord(
            node_id=broker.node_id,
            epoch=NO_EPOCH,
            host=broker.address.host,
            port=broker.address.port,
            rack=broker.rack,
        )
        for broker in brokers
    }
    return spread(current, usable)


def heading_for(place: PartitionPlace) -> tuple[int, ...]:
    """Return the replicas of a partition after the reassignment in progress."""
    return tuple(node_id for node_id in place.replicas if node_id not in place.removing)
