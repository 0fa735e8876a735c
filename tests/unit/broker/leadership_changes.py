"""Begin and end leaderships step by step, as `Replicas` does, without changing the registry."""

from __future__ import annotations

from msgspec.structs import replace
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.broker.coordination.state_log import java_hash
from headrace.broker.partition import Partition
from headrace.model.names import CONSUMER_OFFSETS


def log_of(simulated_broker: SimulatedBroker, group: str) -> Partition:
    """The partition of `__consumer_offsets` that stores this group."""
    topic = simulated_broker.broker.catalogue.topic(CONSUMER_OFFSETS)
    partition = topic.replicas.get(java_hash(group) % topic.partition_count)
    assert partition is not None
    return partition


def become_follower(simulated_broker: SimulatedBroker, partition: Partition) -> None:
    """End the leadership, as when another broker becomes leader."""
    catalogue = simulated_broker.broker.catalogue
    del catalogue.topic(partition.topic).led[partition.index]
    for notify in catalogue.on_leadership_lost:
        notify(partition)
    partition.follow(partition.leader_epoch + 1)


def become_leader(simulated_broker: SimulatedBroker, partition: Partition) -> None:
    """Begin a leadership of this broker in a new epoch."""
    catalogue = simulated_broker.broker.catalogue
    topic = catalogue.topic(partition.topic)
    record = replace(topic.partition_records[partition.index], leader_epoch=partition.leader_epoch + 1)
    partition.lead(simulated_broker.broker.identity.node_id, record, simulated_broker.host.clock.monotonic())
    topic.led[partition.index] = partition
    for notify in catalogue.on_leadership_gained:
        notify(partition)
