"""One topic as this broker knows it: its record, the records of its partitions, its local replicas and its counters.

The counters are plain numbers on the hot path, which are converted to metrics on a scrape.
"""

from __future__ import annotations

from uuid import UUID

from headrace.broker.partition import Partition
from headrace.model.names import is_internal
from headrace.model.registry_records import Nodes, PartitionRecord
from headrace.model.topic_configs import TopicConfig
from headrace.registry.topics import TopicRecord
from headrace.wire.messages.metadata import MetadataResponseTopic


class TopicCounts:
    __slots__ = (
        "bytes_in",
        "bytes_out",
        "duplicates",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "in_sync_gained",
        "in_sync_lost",
        "produces",
        "records_in",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.records_in = 0
        self.duplicates = 0  # messages dropped because of their dedup id
        self.produces = 0
        self.fetches = 0
        self.failed_produces = 0
        self.failed_fetches = 0
        self.in_sync_lost = 0  # out-of-sync replicas of partitions that this broker leads
        self.in_sync_gained = 0

    def produced(self, size_bytes: int, record_count: int) -> None:
        self.produces += 1
        self.bytes_in += size_bytes
        self.records_in += record_count

    def in_sync_changed(self, before: Nodes, after: Nodes) -> None:
        self.in_sync_lost += len(set(before).difference(after))
        self.in_sync_gained += len(set(after).difference(before))

    def fetched(self, size_bytes: int) -> None:
        self.fetches += 1
        self.bytes_out += size_bytes


class Topic:
    """`partition_records` and `versions` are the partition records and their versions in the registry. `replicas` are
    the local replicas, and `led` those that this broker leads. `cached_metadata` is the cached part of the topic in
    Metadata responses.
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

    def local(self, index: int) -> Partition | None:
        """Return the local replica of a partition, leader or follower."""
        return self.replicas.get(index)

    @property
    def replication(self) -> int:
        """The replication factor of the topic."""
        return max(
            (len(record.replicas) - len(record.removing) for record in self.partition_records.values()), default=0
        )
