"""Negative controls that revert one fix each: bugs that Headrace once had.

A seed that draws the feature of the control must find the bug. `Control` notes the first such seed; `python -m
tests.simulation.many --seeds 1-2000 --controls` searches for it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

import pytest
from tests.simulation.cluster_controls import Plant
from tests.simulation.features.clocks import Clocks
from tests.simulation.features.config_changes import ConfigChanges
from tests.simulation.features.dedup import Dedup
from tests.simulation.features.feature import Feature
from tests.simulation.features.lagging_registry import LaggingRegistry
from tests.simulation.features.queue import Queue
from tests.simulation.features.retention import Retention
from tests.simulation.features.trailing_gap import TrailingGap
from tests.simulation.features.unclean import Unclean
from tests.simulation.features.unwritable_dead_letters import UnwritableDeadLetters

from headrace.broker.partition import Partition
from headrace.broker.produce import dedup_windows as dedup
from headrace.broker.queues.acks_log import AcksLog
from headrace.broker.queues.start_position import InheritedSubscriptions
from headrace.broker.replication.replica_fetcher import FollowedPartition, ReplicaFetcher
from headrace.broker.replication.replicas import Replicas
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.queues.ready_messages import ReadyWindow
from headrace.model.topic_configs import TopicConfig
from headrace.registry.topics import TopicRecords, remove_partitions
from headrace.storage.log import acked_retention as settling
from headrace.storage.log import retention
from headrace.storage.log.log import Log
from headrace.storage.log.reading import ColdRead, LogSlice
from headrace.wire.batches.batch import BatchHeader


class Control(NamedTuple):
    """`shows`: a text that every report of the bug contains, if there is one. `first_seed`: 0 if none of the first
    2,000 finds the bug, because the feature does not create the situation often enough."""

    plant: Plant
    feature: type[Feature]
    shows: str
    first_seed: int


def treat_an_unreadable_dead_letter_as_gone(patch: pytest.MonkeyPatch) -> None:
    """A message above the high watermark of a new leader was settled without a dead letter."""
    patch.setattr(Partition, "ensure_committed", lambda *_: None)


def forget_producers_by_record_timestamps(patch: pytest.MonkeyPatch) -> None:
    """Followers took the timestamp of a producer's last record for the time of its last append."""
    expire = Catalogue.expire

    def expire_by_timestamps(self: Catalogue) -> None:
        expire(self)
        for topic in self._by_name.values():
            for partition in topic.replicas.values():
                if not partition.is_leader:
                    _forget_old(partition, self._clock.now_ms() - self.config.producer_id_expiration_ms)

    patch.setattr(Catalogue, "expire", expire_by_timestamps)


def _forget_old(partition: Partition, oldest_ms: int) -> None:
    states = partition.state.producers
    for producer_id, producer in list(states._producers.items()):
        if producer.last_timestamp_ms <= oldest_ms and states.transactions.first_offset(producer_id) < 0:
            del states._producers[producer_id]


def reject_a_batch_that_contains_the_log_start(patch: pytest.MonkeyPatch) -> None:
    """A new follower of a log that starts inside a batch never caught up."""

    async def leave_as_it_is(_self: ReplicaFetcher, _followed: FollowedPartition, _first: BatchHeader) -> None:
        pass

    patch.setattr(ReplicaFetcher, "_restart_at_batch", leave_as_it_is)


def retain_above_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Retention deleted records that were flushed by this replica but not committed."""
    patch.setattr(retention, "deletable_offset", lambda log: log.flushed_offset)


def remove_partitions_by_a_stale_mirror(patch: pytest.MonkeyPatch) -> None:
    """A new controller removed the partitions of a topic that was being created."""

    async def remove(self: TopicRecords, topic_ids: Iterable[UUID]) -> None:
        for topic_id in list(topic_ids):
            await remove_partitions(self._registry, topic_id)

    patch.setattr(TopicRecords, "remove_orphaned_partitions", remove)


def stop_at_a_gap(patch: pytest.MonkeyPatch) -> None:
    """A read at a gap that reaches to the end returned an empty slice at the same offset, endlessly."""
    read = Log.read

    def read_without_progress(self: Log, offset: int, size_bytes_max: int, end_offset: int) -> LogSlice | ColdRead:
        piece = read(self, offset, size_bytes_max, end_offset)
        is_gap = isinstance(piece, LogSlice) and not len(piece)
        return LogSlice(None, 0, 0, offset) if is_gap else piece

    patch.setattr(Log, "read", read_without_progress)


def begin_at_the_end_of_added_partitions(patch: pytest.MonkeyPatch) -> None:
    """An existing subscription missed the first records of an added partition."""

    async def find_none(_self: InheritedSubscriptions, _acks: AcksLog, _older: int) -> list[str]:
        return []

    patch.setattr(InheritedSubscriptions, "find", find_none)


def trust_acks_of_an_earlier_leader_epoch(patch: pytest.MonkeyPatch) -> None:
    """After an unclean election, acked retention deleted new messages at offsets that had been acked."""
    patch.setattr(settling, "_is_reconciled", lambda *_: True)


def forget_ids_by_record_timestamps(patch: pytest.MonkeyPatch) -> None:
    """A new leader took a record's timestamp for the time at which its dedup id arrived. If a publisher's clock was
    behind by more than the window, every change of leader dropped its ids."""

    def timestamp_ms(self: dedup._ArrivalTimes, batch: BatchHeader) -> int:
        now_ms = self._latest_ms[-1]
        return min(batch.max_timestamp, now_ms)

    patch.setattr(dedup._ArrivalTimes, "latest_ms", timestamp_ms)


def rank_by_record_timestamps(patch: pytest.MonkeyPatch) -> None:
    """Messages of high priority with old timestamps overtook those of low priority for longer than their slack."""
    patch.setattr(ReadyWindow, "_arrival_ms", lambda _self, timestamp_ms, now_ms: min(timestamp_ms, now_ms))


def forget_that_flush_messages_was_higher(patch: pytest.MonkeyPatch) -> None:
    """A broker that had acknowledged from memory, and lost the records in a power failure, stayed in the in-sync set if
    `flush.messages` had been lowered meanwhile."""

    async def leave_in_memory(_self: Replicas, _topic: Topic, _config: TopicConfig) -> bool:
        return True

    def by_present_config(_self: Replicas, topic: Topic) -> bool:
        return topic.config.flush_messages > 1

    patch.setattr(Replicas, "_flush_memory", leave_in_memory)
    patch.setattr(Replicas, "may_have_acknowledged_from_memory", by_present_config)


REGRESSION_CONTROLS = (
    Control(treat_an_unreadable_dead_letter_as_gone, UnwritableDeadLetters, "no dead letter", 23),
    Control(forget_producers_by_record_timestamps, Clocks, "duplicate in partition", 11),
    Control(reject_a_batch_that_contains_the_log_start, Retention, "NotRecovered", 9),
    Control(retain_above_the_high_watermark, Retention, "would be truncated to", 40),
    Control(remove_partitions_by_a_stale_mirror, LaggingRegistry, "has no record", 365),
    Control(stop_at_a_gap, TrailingGap, "requests failed by an exception", 77),
    Control(begin_at_the_end_of_added_partitions, Queue, "never settled", 5),
    Control(trust_acks_of_an_earlier_leader_epoch, Unclean, "not by an unclean election", 93),
    Control(forget_ids_by_record_timestamps, Dedup, "duplicate in partition", 9),
    Control(forget_that_flush_messages_was_higher, ConfigChanges, "", 1310),
    Control(rank_by_record_timestamps, Queue, "starved", 456),
)
