"""One topic as this broker knows it: its record, the records of its partitions, its local replicas and its counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from headrace.broker.partition import Partition, TopicCounts
from headrace.model.names import is_internal
from headrace.model.registry_records import PartitionRecord, TopicRecord
from headrace.model.topic_configs import TopicConfig
from headrace.wire.messages.metadata import MetadataResponseTopic


@dataclass(slots=True, eq=False)
class Topic:
    """`partition_records` and `versions` are the partition records and their versions in the registry. `replicas` are
    the local replicas, leaders and followers, and `led` those that this broker leads. `cached_metadata` is the cached
    part of the topic in Metadata responses.
    """

    record: TopicRecord
    config: TopicConfig
    counts: TopicCounts = field(default_factory=TopicCounts)
    partition_records: dict[int, PartitionRecord] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    replicas: dict[int, Partition] = field(default_factory=dict)
    led: dict[int, Partition] = field(default_factory=dict)
    cached_metadata: MetadataResponseTopic | None = None

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
