"""Leads that come and go, step by step as `Replicas` lets them; what the registry says is left alone."""

from __future__ import annotations

from msgspec.structs import replace
from tests.unit.broker.house import House

from headrace.broker.partition import Partition
from headrace.broker.state_log import java_hash
from headrace.model.names import CONSUMER_OFFSETS


def log_of(house: House, group: str) -> Partition:
    """The partition in which everything of this group lies."""
    topic = house.broker.catalogue.topic(CONSUMER_OFFSETS)
    partition = topic.local(java_hash(group) % topic.partition_count)
    assert partition is not None
    return partition


def resign(house: House, partition: Partition) -> None:
    """Another broker leads it from now on."""
    catalogue = house.broker.catalogue
    del catalogue.topic(partition.topic).led[partition.index]
    for told in catalogue.on_resign:
        told(partition)
    partition.follow(partition.leader_epoch + 1)


def lead(house: House, partition: Partition) -> None:
    """This broker leads it from now on, in a new epoch."""
    catalogue = house.broker.catalogue
    topic = catalogue.topic(partition.topic)
    record = replace(topic.places[partition.index], leader_epoch=partition.leader_epoch + 1)
    partition.lead(house.broker.identity.node_id, record, house.host.clock.monotonic())
    topic.led[partition.index] = partition
    for told in catalogue.on_lead:
        told(partition)
