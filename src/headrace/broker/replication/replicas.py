"""The local replicas: open, lead, follow and remove them according to the partition records in the registry.

- The end of a leadership takes effect immediately, within the call that reports the changed record.
- Operations on the disk (creating, truncating and removing logs) are done by a single task. It reads the current record
  of each changed partition, so that changes during an operation are not missed.
- A log is removed only if the record no longer contains this broker, or if the topic was deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from uuid import UUID

from headrace.broker.cluster.registry_rollback import KnownLeaders
from headrace.broker.partition import Partition, PartitionState
from headrace.broker.replication.replica_fetcher import FollowerFetchers
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import HeadraceError
from headrace.model.registry_records import NO_LEADER, PartitionRecord
from headrace.model.topic_configs import TopicConfig
from headrace.registry.topics import TopicRecords
from headrace.runtime.clock import Clock
from headrace.runtime.entropy import Entropy
from headrace.storage.config import LogConfig
from headrace.storage.log.log import Log
from headrace.storage.store.log_store import LogStore, Opening

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_LOG_SECONDS = 1.0
_LOGGED_MAX = 5

TopicIdPartition = tuple[UUID, int]


class Replicas:
    def __init__(
        self,
        catalogue: Catalogue,
        store: LogStore,
        replication: FollowerFetchers,
        clock: Clock,
        entropy: Entropy,
        node_id: int,
        broker_epoch: int,
        topics: TopicRecords,
        known_leaders: KnownLeaders,
    ) -> None:
        self._catalogue = catalogue
        self._topics = topics
        self._known_leaders = known_leaders
        self._store = store
        self._follower_fetchers = replication
        self._clock = clock
        self._entropy = entropy
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._dirty: dict[TopicIdPartition, None] = {}
        self._to_delete: dict[TopicIdPartition, Partition] = {}
        self._changed_records: dict[UUID, None] = {}
        self._record_changed = asyncio.Event()
        self._memory_acknowledging: set[UUID] = set()
        """Topics that may acknowledge from memory, because their topic files contain `flush.messages` > 1."""
        self._wake = asyncio.Event()
        self._settled: list[tuple[UUID | None, asyncio.Future[None]]] = []
        self._is_busy = False
        self._gained: list[Partition] = []
        self._lost: list[Partition] = []
        catalogue.on_partition_change.append(self._on_partition_change)
        catalogue.on_topic_change.append(self._on_topic_change)
        catalogue.on_topic_deleted.append(self._on_topic_deleted)
        catalogue.on_brokers_change.append(self._on_brokers_change)

    async def open_logs(self) -> None:
        """Open the logs of all local replicas in the registry. Other logs are deleted if their topic was deleted, and
        become stray otherwise."""

        def wanted(topic_id: UUID, index: int) -> Opening | None:
            topic = self._catalogue.find_by_id(topic_id)
            if topic is None or not self._is_replica(topic, index):
                return None
            return self._opening(topic)

        unknown = {topic_id for topic_id, _ in self._store.found() if self._catalogue.find_by_id(topic_id) is None}
        await self._store.open_all(wanted, await self._topics.deleted(unknown))

    async def begin(self) -> None:
        """Begin to lead and follow with the open logs."""
        await self._reconcile()
        for topic in self._catalogue:  # in the background: a full disk must not prevent startup
            self._mark_record(topic)
        await self._store.topic_files.drop([one for one in self._store.topic_files.records if not self._holds(one)])

    async def run(self) -> None:
        """Apply the partition records until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._reconcile()
            except HeadraceError as error:
                # Most likely the disk is full: other brokers lead meanwhile.
                log.error("creating or removing a replica failed error=%s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._wake.set()

    async def write_topic_records(self) -> None:
        """Write the metadata of topics beside their logs until cancelled. Leaderships do not wait for it.

        After a crash, the topic file shows whether a local replica may have acknowledged records from memory, even if
        the configuration has changed. Therefore `flush.messages` > 1 takes effect only when the file contains it, and
        is removed from the file only when all records that were acknowledged from memory are flushed.
        """
        while True:
            await self._record_changed.wait()
            self._record_changed.clear()
            changed, self._changed_records = self._changed_records, {}
            topics = [self._catalogue.find_by_id(topic_id) for topic_id in changed]
            held = [(one, one.record, one.config) for one in topics if one is not None and one.replicas]
            self._memory_acknowledging.difference_update(
                topic.id for topic, _, config in held if config.flush_messages <= 1
            )
            flushed = [await self._flush_memory(topic, config) for topic, _, config in held]
            try:
                await self._store.topic_files.keep(
                    one[1] for one, is_kept in zip(held, flushed, strict=True) if is_kept
                )
            except HeadraceError as error:
                log.error("writing topic files failed error=%s", error)
                self._changed_records = {**changed, **self._changed_records}
                await asyncio.sleep(_RETRY_SECONDS)
                self._record_changed.set()
                continue
            for topic, _, config in held:
                if config.flush_messages > 1 and topic.config.flush_messages > 1:
                    self._memory_acknowledging.add(topic.id)
                    self.reconfigure(topic)

    async def _flush_memory(self, topic: Topic, config: TopicConfig) -> bool:
        """Flush records that were acknowledged from memory, if the topic no longer does that. Return False if a log has
        failed: the topic file must not change then, because the restart that the log needs reads it."""
        if config.flush_messages <= 1 < self._kept_flush_messages(topic):
            try:
                for partition in list(topic.replicas.values()):
                    await self._store.flusher.flush(partition.log)
            except HeadraceError as error:
                log.error("flushing a topic failed topic=%s error=%s", topic.name, error)
                return False
        return True

    def may_have_acknowledged_from_memory(self, topic: Topic) -> bool:
        """Whether a local replica may have acknowledged unflushed records before this start."""
        return max(topic.config.flush_messages, self._kept_flush_messages(topic)) > 1

    def _kept_flush_messages(self, topic: Topic) -> int:
        """Return `flush.messages` of the topic file."""
        kept = self._store.topic_files.records.get(topic.id)
        return (
            1 if kept is None else TopicConfig.build(kept.configs, self._catalogue.config.topic_defaults).flush_messages
        )

    async def settled(self, topic_id: UUID | None = None) -> None:
        """Wait until all changes known at the time of the call are applied. Raise the error that prevents the creation
        of replicas of this topic; errors of other topics are ignored."""
        if self._is_busy or self._dirty or self._to_delete:
            future = asyncio.get_running_loop().create_future()
            self._settled.append((topic_id, future))
            self._wake.set()
            await future

    def reconfigure(self, topic: Topic) -> None:
        config = self._effective_config(topic)
        for partition in topic.replicas.values():
            partition.config = config
            partition.log.config = self._log_config(config)

    # Notifications

    def _on_partition_change(self, topic: Topic, index: int) -> None:
        record = topic.partition_records[index]
        partition = topic.led.get(index)
        if partition is not None:
            if record.leader_epoch == partition.leader_epoch:
                partition.update(record)
                return
            self._resign(topic, partition)
            partition.follow(record.leader_epoch)
            self._log_later(self._lost, partition)
        self._mark(topic.id, index)

    def _on_topic_change(self, topic: Topic) -> None:
        self.reconfigure(topic)
        self._mark_record(topic)
        for index in topic.partition_records:
            if index not in topic.replicas:
                self._mark(topic.id, index)

    def _on_topic_deleted(self, topic: Topic) -> None:
        for index, partition in list(topic.replicas.items()):
            self._drop(topic, partition)
            self._to_delete[topic.id, index] = partition
        self._wake.set()

    def _on_brokers_change(self) -> None:
        """Handle changed brokers: a leader may be back under another address."""
        for topic in self._catalogue:
            for index, partition in topic.replicas.items():
                if not partition.is_leader:
                    self._dirty[topic.id, index] = None
        self._wake.set()

    def _mark_record(self, topic: Topic) -> None:
        """Mark the topic file beside the logs as possibly outdated."""
        if topic.replicas:
            self._changed_records[topic.id] = None
            self._record_changed.set()

    def _mark(self, topic_id: UUID, index: int) -> None:
        self._dirty[topic_id, index] = None
        self._wake.set()

    # Reconciliation

    async def _reconcile(self) -> None:
        failure: HeadraceError | None = None
        tried = set[UUID]()
        self._is_busy = True
        try:
            while failure is None and (self._dirty or self._to_delete):
                keys, self._dirty = list(self._dirty), {}
                tried.update(topic_id for topic_id, _ in keys)
                try:
                    await self._apply_records(keys)
                except HeadraceError as error:
                    self._dirty = {**dict.fromkeys(keys), **self._dirty}
                    failure = error
        finally:
            self._is_busy = False
        settled, self._settled = self._settled, []
        for topic_id, future in settled:
            if future.done():
                continue
            if failure is None or not self._lacks(topic_id):
                future.set_result(None)
            elif topic_id in tried:
                future.set_exception(failure)
            else:
                self._settled.append((topic_id, future))
        if failure is not None:
            raise failure

    async def _apply_records(self, keys: list[TopicIdPartition]) -> None:
        """Apply the records. A failure to create or remove a log does not prevent the roles of other replicas."""
        for topic, partition in self._local_replicas(keys):
            if not self._is_replica(topic, partition.index):
                self._drop(topic, partition)
                self._to_delete[topic.id, partition.index] = partition
        failures: list[HeadraceError] = []
        for step in (self._delete_logs, partial(self._create_logs, keys), partial(self._replace_damaged, keys)):
            try:
                await step()
            except HeadraceError as error:
                failures.append(error)
        await self._known_leaders.add(
            leadership
            for topic, partition in self._local_replicas(keys)
            if (record := topic.partition_records.get(partition.index)) is not None
            for leadership in record.leaderships
        )
        for topic, partition in self._local_replicas(keys):
            await self._apply_role(topic, partition)
        if failures:
            raise failures[0]

    def _local_replicas(self, keys: Iterable[TopicIdPartition]) -> Iterator[tuple[Topic, Partition]]:
        for topic_id, index in keys:
            topic = self._catalogue.find_by_id(topic_id)
            if topic is not None and index in topic.replicas:
                yield topic, topic.replicas[index]

    async def _create_logs(self, keys: Iterable[TopicIdPartition]) -> None:
        missing = []
        for topic_id, index in keys:
            topic = self._catalogue.find_by_id(topic_id)
            if topic is not None and index not in topic.replicas and self._is_replica(topic, index):
                missing.append((topic, index))
        if not missing:
            return
        logs = await self._store.create_all((topic.id, index, self._opening(topic)) for topic, index in missing)
        for (topic, _), new_log in zip(missing, logs, strict=True):
            self._add(topic, new_log)

    def _add(self, topic: Topic, new_log: Log) -> None:
        config = self._effective_config(topic)
        partition = Partition(new_log, self._store.flusher, topic.name, config, topic.counts)
        if self._catalogue.find_by_id(topic.id) is topic:
            topic.replicas[partition.index] = partition
            new_log.config = self._log_config(config)  # it may have been changed while the log was created
            self._mark_record(topic)
        else:  # the topic was deleted meanwhile
            self._to_delete[topic.id, partition.index] = partition

    async def _replace_damaged(self, keys: Iterable[TopicIdPartition]) -> None:
        """Replace damaged logs by empty ones and replicate them again, if other replicas have all records and this one
        does not count as a source of committed records."""
        for topic, partition in self._local_replicas(keys):
            record = topic.partition_records.get(partition.index)
            if partition.log.quarantined is None or record is None or record.leader in (NO_LEADER, self._node_id):
                continue
            # Logs that were damaged at run time must wait for the next start: a fetch in flight from before the damage
            # would report a position that the new log does not have.
            if partition.is_from_damage and self._node_id not in record.isr + record.elr:
                self._drop(topic, partition)
                async with partition.changing:
                    pass  # wait until a truncation in progress has finished
                opening = self._opening(topic)
                self._add(topic, await self._store.replace(topic.id, partition.index, opening))

    async def _delete_logs(self) -> None:
        to_delete, self._to_delete = self._to_delete, {}
        if not to_delete:
            return
        try:
            for partition in to_delete.values():
                async with partition.changing:
                    pass  # wait until a truncation in progress has finished
            gone = {topic_id for topic_id, _ in to_delete if self._catalogue.find_by_id(topic_id) is None}
            lost = gone - await self._topics.deleted(gone)  # lost because the registry was replaced by an older one
            await self._store.move_all_to_stray([key for key in to_delete if key[0] in lost])
            await self._store.delete_all([key for key in to_delete if key[0] not in lost])
            await self._store.topic_files.drop({topic_id for topic_id, _ in to_delete if not self._holds(topic_id)})
        except HeadraceError:
            self._to_delete = {**to_delete, **self._to_delete}
            raise

    def _holds(self, topic_id: UUID) -> bool:
        topic = self._catalogue.find_by_id(topic_id)
        return topic is not None and bool(topic.replicas)

    async def _apply_role(self, topic: Topic, partition: Partition) -> None:
        async with partition.changing:
            record = topic.partition_records.get(partition.index)
            if record is None or partition.is_retired or record.leader_epoch < partition.leader_epoch:
                return
            if not all(map(self._known_leaders.knows, record.leaderships)):
                self._mark(topic.id, partition.index)  # the record has changed meanwhile
            elif record.is_led_by(self._node_id, self._broker_epoch):
                self._lead(topic, partition, record)
            else:
                self._follow(partition, record)

    def _lead(self, topic: Topic, partition: Partition, record: PartitionRecord) -> None:
        if partition.is_leader:
            return
        self._follower_fetchers.drop(partition)
        partition.lead(self._node_id, record, self._clock.monotonic())
        partition.log.enforces_retention = True
        topic.led[partition.index] = partition
        if record.leader_epoch > 0:  # otherwise the topic is new
            self._log_later(self._gained, partition)
        for notify in self._catalogue.on_leadership_gained:
            notify(partition)

    def _log_later(self, changes: list[Partition], partition: Partition) -> None:
        """Log the leaderships that change within a second in one line, since a broker may lead thousands."""
        if not self._gained and not self._lost:
            asyncio.get_running_loop().call_later(_LOG_SECONDS, self._log_leader_changes)
        changes.append(partition)

    def _log_leader_changes(self) -> None:
        (gained, lost), self._gained, self._lost = (self._gained, self._lost), [], []
        for event, partitions in (("leaderships lost", lost), ("leaderships gained", gained)):
            if partitions:
                named = [f"{one.topic}-{one.index}" for one in partitions[:_LOGGED_MAX]]
                rest = ",..." if len(partitions) > _LOGGED_MAX else ""
                log.info("%s count=%d partitions=%s%s", event, len(partitions), ",".join(named), rest)

    def _follow(self, partition: Partition, record: PartitionRecord) -> None:
        assert not partition.is_leader
        partition.follow(record.leader_epoch)
        partition.log.enforces_retention = False
        leader = self._catalogue.nodes.get(record.leader)
        if leader is None or leader.epoch != record.leader_broker_epoch or leader.node_id == self._node_id:
            self._follower_fetchers.drop(partition)
        else:
            self._follower_fetchers.follow(partition, leader, record)

    def _resign(self, topic: Topic, partition: Partition) -> None:
        if topic.led.pop(partition.index, None) is not None:
            for notify in self._catalogue.on_leadership_lost:
                notify(partition)

    def _drop(self, topic: Topic, partition: Partition) -> None:
        self._follower_fetchers.drop(partition)
        self._resign(topic, partition)
        partition.retire()
        del topic.replicas[partition.index]

    def _lacks(self, topic_id: UUID | None) -> bool:
        """Whether local replicas of a topic are missing."""
        topic = None if topic_id is None else self._catalogue.find_by_id(topic_id)
        return topic is not None and any(
            index not in topic.replicas and self._is_replica(topic, index) for index in topic.partition_records
        )

    def _is_replica(self, topic: Topic, index: int) -> bool:
        record = topic.partition_records.get(index)
        return record is not None and index < topic.partition_count and self._node_id in record.replicas

    # Logs

    def _opening(self, topic: Topic) -> Opening:
        return Opening(self._log_config(self._effective_config(topic)), PartitionState())

    def _effective_config(self, topic: Topic) -> TopicConfig:
        """Return the topic's configuration, with `flush.messages` = 1 until the topic file contains a larger value."""
        if topic.config.flush_messages > 1 and topic.id not in self._memory_acknowledging:
            return replace(topic.config, flush_messages=1)
        return topic.config

    def _log_config(self, config: TopicConfig) -> LogConfig:
        # The active segment is never compacted, so it must be rolled in time for max.compaction.lag.ms.
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
