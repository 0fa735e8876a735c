"""One topic as this broker knows it: its record, the records of its partitions, its local replicas and its counters."""

from __future__ import annotations

from uuid import UUID

from headrace.broker.partition import Partition, TopicCounts
from headrace.model.names import is_internal
from headrace.model.registry_records import PartitionRecord, TopicRecord
from headrace.model.topic_configs import TopicConfig
from headrace.wire.messages.metadata import MetadataResponseTopic


class Topic:
    """`partition_records` and `versions` are the partition records and their versions in the registry. `replicas` are
    the local replicas, leaders and followers, and `led` those that this broker leads. `cached_metadata` is the cached
    part of the topic in Metadata responses.
    """

    __slots__ = ("cached_metadata", "config", "counts", "led", "partition_records", "record", "replicas", "versions")

    def __init__(self, record: TopicRecord, config: TopicConfig) -> None:
        self.record = record
        self.config = config
        self.counts = TopicCounts()
        self.partition_records: dict[int, PartitionRecord] = {}
        self.versions: dict[int, int] = {}
        self.replicas: dict[int, Partition] = {}
        self.led: dict[int, Partition] = {}
        self.cached_metadata: MetadataResponseTopic | None = None

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def id(self) -> UUID:
        return self.record.id

    @property
    def partition_count(self) -> int:
        return self.record.partitions

    @property
    def is_internal(self) -> bool:
        return is_internal(self.record.name)

    @property
    def is_colocated(self) -> bool:
        """Whether this is a co-located topic, which has the replicas of its owner."""
        return self.record.owner is not None

    @property
    def replication(self) -> int:
        return max(
            (len(record.replicas) - len(record.removing) for record in self.partition_records.values()), default=0
        )
