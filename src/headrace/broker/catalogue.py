"""The topics that this broker holds: what the registry says, and the open logs behind it.

The registry is the truth. A topic is written there before its folders exist and taken out before they are removed, so a
crash in between leaves either a topic whose folders are made at the next start, or folders that nobody claims and that
are then deleted. When `create` returns, every partition takes writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from uuid import UUID

from headrace.broker.counts import TopicCounts
from headrace.broker.partition import Partition, PartitionState
from headrace.model.broker_configs import BrokerConfig
from headrace.model.errors import (
    HeadraceError,
    InvalidPartitions,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.model.names import check_topic_name, is_internal
from headrace.model.topic_configs import TopicConfig
from headrace.registry.topics import TopicRecord, Topics
from headrace.runtime.clock import Clock
from headrace.runtime.entropy import Entropy
from headrace.storage.config import LogConfig
from headrace.storage.store import LogStore, Opening

PARTITIONS_MAX = 100_000  # per topic: a typing error must not fill the disk with folders


class Topic:
    __slots__ = ("config", "counts", "partitions", "record")

    def __init__(self, record: TopicRecord, config: TopicConfig) -> None:
        self.record = record
        self.config = config
        self.counts = TopicCounts()
        self.partitions: list[Partition] = []

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def id(self) -> UUID:
        return self.record.id

    @property
    def is_internal(self) -> bool:
        return is_internal(self.record.name)


class Catalogue:
    """`version` changes with every change of topics, partitions or configs; caches of metadata hang on it."""

    def __init__(
        self,
        records: Topics,
        store: LogStore,
        config: BrokerConfig,
        clock: Clock,
        entropy: Entropy,
        broker_epoch: int,
    ) -> None:
        self.config = config
        self.version = 0
        self._records = records
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._broker_epoch = broker_epoch
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._changing = asyncio.Lock()
        self.on_deleted: Callable[[Topic], None] | None = None

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    # Looking up

    def partition(self, topic: str, index: int) -> Partition:
        try:
            if index >= 0:
                return self._by_name[topic].partitions[index]
        except (KeyError, IndexError):
            pass
        raise UnknownTopicOrPartition(f"there is no partition {topic}-{index}")

    def partition_by_id(self, topic_id: UUID, index: int) -> Partition:
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with id {topic_id}")
        if not 0 <= index < len(topic.partitions):
            raise UnknownTopicOrPartition(f"there is no partition {topic.name}-{index}")
        return topic.partitions[index]

    def find(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def find_by_id(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def topic(self, name: str) -> Topic:
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name}")
        return topic

    # Changing

    async def open(self) -> None:
        """Open the log of every partition that the registry knows; delete what it does not know."""
        for record in await self._records.load():
            self._publish(Topic(record, TopicConfig.build(record.configs, self.config.topic_defaults)))

        def wanted(topic_id: UUID, partition: int) -> Opening | None:
            topic = self._by_id.get(topic_id)
            known = topic is not None and partition < topic.record.partitions
            return self._opening(topic.config) if topic is not None and known else None

        await self._store.open_all(wanted)
        for topic in self._by_name.values():
            await self._open_partitions(topic)

    async def create(self, name: str, partitions: int, configs: dict[str, str], *, dry_run: bool = False) -> Topic:
        """Make a topic that takes writes when this returns."""
        check_topic_name(name)
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidPartitions(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")
        config = TopicConfig.build(configs, self.config.topic_defaults)
        async with self._changing:
            self._refuse_existing(name)
            record = TopicRecord(
                name=name,
                id=self._entropy.uuid(),
                partitions=partitions,
                configs=configs,
                created_ms=self._clock.now_ms(),
                created_epoch=self._broker_epoch,
            )
            topic = Topic(record, config)
            if dry_run:
                return topic
            await self._records.create(record)
            try:
                await self._open_partitions(topic)
            except HeadraceError:
                # Without its logs it would be in the way of every later attempt to create it.
                await self._records.delete(name, record.id)
                raise
            self._publish(topic)
            return topic

    async def delete(self, name: str) -> None:
        async with self._changing:
            topic = self.topic(name)
            await self._records.delete(name, topic.id)
            del self._by_name[name]
            del self._by_id[topic.id]
            self.version += 1
            for partition in topic.partitions:
                partition.retire()
            if self.on_deleted is not None:
                self.on_deleted(topic)
            await self._store.delete_all([(topic.id, partition.index) for partition in topic.partitions])

    async def add_partitions(self, name: str, total: int, *, dry_run: bool = False) -> None:
        async with self._changing:
            topic = self.topic(name)
            if total <= len(topic.partitions):
                raise InvalidPartitions(
                    f"topic {name} has {len(topic.partitions)} partitions already; {total} is no more"
                )
            if total > PARTITIONS_MAX:
                raise InvalidPartitions(f"a topic has at most {PARTITIONS_MAX} partitions, not {total}")
            if dry_run:
                return
            if total > topic.record.partitions:  # else it was written by an attempt that found no room on the disk
                topic.record = await self._records.add_partitions(name, topic.id, total)
            await self._open_partitions(topic)
            self.version += 1

    async def change_configs(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, dry_run: bool = False
    ) -> None:
        """`change` turns the topic's overrides into the new ones, or raises what is wrong with them."""
        async with self._changing:
            topic = self.topic(name)
            config = TopicConfig.build(change(topic.record.configs), self.config.topic_defaults)
            if dry_run:
                return
            topic.record = await self._records.change_configs(name, topic.id, change)
            self._configure(topic, config)
            self.version += 1

    def check_defaults(self, config: BrokerConfig) -> None:
        """Raise `InvalidConfig` if a topic's own configs do not go with these defaults."""
        for topic in self._by_name.values():
            TopicConfig.build(topic.record.configs, config.topic_defaults)

    def reconfigure(self, config: BrokerConfig) -> None:
        """The broker's own defaults have changed: so have those of its topics."""
        self.config = config
        for topic in self._by_name.values():
            self._configure(topic, TopicConfig.build(topic.record.configs, config.topic_defaults))
        self.version += 1

    def expire(self) -> None:
        """End the waits of producers whose time is up, and forget producers that are long gone."""
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        for topic in self._by_name.values():
            for partition in topic.partitions:
                partition.expire(now)
                partition.state.expire(partition.log.start_offset, now_ms, self.config.producer_id_expiration_ms)

    def _refuse_existing(self, name: str) -> None:
        if name in self._by_name:
            raise TopicAlreadyExists(f"Topic '{name}' already exists.")
        if "." in name or "_" in name:
            # Names of metrics know no dots: two topics that differ only by that would be one there.
            alike = name.replace(".", "_")
            for other in self._by_name:
                if other.replace(".", "_") == alike:
                    raise InvalidTopic(f"Topic '{name}' collides with existing topic: {other}")

    def _publish(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic
        self.version += 1

    async def _open_partitions(self, topic: Topic) -> None:
        """Make partitions of logs, and logs where there are none yet, up to the number in the topic's record."""
        missing = range(len(topic.partitions), topic.record.partitions)
        logs = await self._store.create_all((topic.id, index, self._opening(topic.config)) for index in missing)
        leader_epoch = self._broker_epoch - topic.record.created_epoch
        topic.partitions += [
            Partition(log, self._store.flusher, topic.name, topic.config, leader_epoch, topic.counts) for log in logs
        ]

    def _configure(self, topic: Topic, config: TopicConfig) -> None:
        topic.config = config
        for partition in topic.partitions:
            partition.config = config
            partition.log.config = self._log_config(config)

    def _opening(self, config: TopicConfig) -> Opening:
        return Opening(self._log_config(config), PartitionState())

    def _log_config(self, config: TopicConfig) -> LogConfig:
        # The active segment is never compacted, so it must be rolled in time for what must be.
        segment_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.compacts else config.segment_ms
        jitter_ms = min(config.segment_jitter_ms, segment_ms - 1)
        return LogConfig(
            segment_bytes=config.segment_bytes,
            segment_ms=segment_ms - (self._entropy.integer(0, jitter_ms) if jitter_ms > 0 else 0),
            index_interval_bytes=config.index_interval_bytes,
            index_bytes_max=config.segment_index_bytes,
            retention_ms=config.retention_ms if config.deletes else -1,
            retention_bytes=config.retention_bytes if config.deletes else -1,
            flush_messages=config.flush_messages,
            compacts=config.compacts,
            min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
            min_compaction_lag_ms=config.min_compaction_lag_ms,
            max_compaction_lag_ms=config.max_compaction_lag_ms,
            delete_retention_ms=config.delete_retention_ms,
        )
