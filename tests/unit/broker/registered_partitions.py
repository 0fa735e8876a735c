"""Partitions on brokers without logs: their records in a registry, and the view that one broker has of them."""

from __future__ import annotations

from uuid import UUID

from headrace.broker.controller.partition_requests import PartitionRequests
from headrace.broker.handlers import RequestContext
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.broker_configs import BrokerConfig
from headrace.model.registry_records import BrokerRecord, PartitionRecord, TopicRecord
from headrace.registry.brokers import drain, epoch_key
from headrace.registry.interface import Create
from headrace.registry.topics import TopicRecords, decode_partition, partition_key, remove_partitions
from headrace.runtime.clock import SystemClock
from headrace.testkit.entropy import SeededEntropy
from headrace.testkit.registry import SimRegistry


class RegisteredPartitions:
    """The catalogue reads the registry only in `refresh`, so that its view may be out of date."""

    def __init__(self, *node_ids: int) -> None:
        self.registry = SimRegistry()
        self.catalogue = Catalogue(self.registry, BrokerConfig(), SystemClock(), SeededEntropy(1))
        self.requests = PartitionRequests(self.catalogue, self.registry)
        for node_id in node_ids:
            self.start(node_id)

    def start(self, node_id: int, *, is_draining: bool = False) -> None:
        self.catalogue.nodes[node_id] = BrokerRecord(
            node_id=node_id, epoch=1, host=f"broker{node_id}", port=9092, is_draining=is_draining
        )

    async def register(self, *node_ids: int) -> None:
        """Register brokers, as their first start does."""
        await self.registry.commit([Create(epoch_key(node_id), b"1") for node_id in node_ids])

    async def drain(self, node_id: int) -> None:
        await drain(self.registry, node_id, is_drained=True)
        await self.refresh()

    async def add(self, name: str, *records: PartitionRecord, min_insync: int = 1, owner: UUID | None = None) -> None:
        topic = TopicRecord(
            name=name,
            id=UUID(int=len(self.catalogue) + 1),
            partitions=len(records),
            configs={"min.insync.replicas": str(min_insync)},
            created_ms=0,
            owner=owner,
        )
        await TopicRecords(self.registry).create(topic, records)
        await self.refresh()

    async def delete(self, name: str) -> None:
        """Delete the topic without refreshing this broker's view."""
        topic_id = self.catalogue.topic(name).id
        await TopicRecords(self.registry).delete(name, topic_id, 0)
        await remove_partitions(self.registry, topic_id)

    async def record(self, topic: str, index: int = 0) -> PartitionRecord:
        """The record in the registry."""
        entry = await self.registry.get(partition_key(self.catalogue.topic(topic).id, index))
        assert entry is not None
        return decode_partition(entry)

    async def refresh(self) -> None:
        await self.catalogue.mirror.open()


def context(version: int = 0) -> RequestContext:
    return RequestContext(version, "test", "client.example", "kafka", lambda _: None, lambda: None)
