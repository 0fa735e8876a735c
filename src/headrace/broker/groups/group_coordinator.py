"""The group coordinator: the groups of all partitions of `__consumer_offsets` that this broker leads.

A group belongs to one partition of `__consumer_offsets`, and the leader of the partition is its coordinator. `begin`
and `end` are called at the start and the end of each leadership; in between there is one `GroupShard`.

- Until it is loaded, requests for its groups fail with `CoordinatorLoading`. Requests for groups with damaged records
  fail permanently; other groups of the partition are not affected.
- Requests for all other groups fail with `NotCoordinator`, also if this broker does not know yet that it leads the
  partition, or that the topic exists: a response without the committed offsets would reset consumers to the start.
- While the registry session of the broker has expired, all requests fail with `CoordinatorNotAvailable`, because
  another broker may be the coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

from headrace.broker.groups.consumer_groups import TopicsImageCache
from headrace.broker.groups.group_shard import GroupShard, GroupShardConfig
from headrace.broker.groups.offsets_log import OffsetsLog, OffsetsLogPartition
from headrace.broker.partition import Partition
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.groups.consumer_group import ConsumerGroupConfig
from headrace.machines.groups.group_migration import MigrationPolicy
from headrace.machines.groups.group_state import GroupConfig
from headrace.machines.share_groups.share_group import ShareSessionConfig
from headrace.model.errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from headrace.model.names import CONSUMER_OFFSETS
from headrace.runtime.clock import AnchoredClock, Clock


class GroupCoordinator:
    """Iterates over the loaded `GroupShard`."""

    def __init__(
        self,
        offsets_log: OffsetsLog,
        catalogue: Catalogue,
        config: GroupConfig,
        consumer_config_of: Callable[[str], ConsumerGroupConfig],
        share_timing_of: Callable[[str], ShareSessionConfig],
        metadata_bytes_max: int,
        migration_policy: MigrationPolicy,
        clock: Clock,
        session_expired: Callable[[], bool],
    ) -> None:
        self.config = GroupShardConfig(
            config, consumer_config_of, share_timing_of, metadata_bytes_max, migration_policy
        )
        self._log = offsets_log
        self._session_expired = session_expired
        self._topics_image_cache = TopicsImageCache(catalogue)
        self._now_ms = AnchoredClock(clock).now_ms  # so that a jump of the wall clock does not expire all sessions
        self._shards: dict[int, GroupShard] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._is_stopped = asyncio.Event()

    def __iter__(self) -> Iterator[GroupShard]:
        return (groups for groups in self._shards.values() if groups.is_loaded)

    @property
    def is_loaded(self) -> bool:
        """Whether no partition is still being loaded."""
        return all(groups.is_loaded for groups in self._shards.values())

    # Lookup

    def of(self, group_id: str) -> GroupShard:
        """Return the groups of the partition to which this group belongs. Raise unless requests for it can be served
        now; call it again after every await."""
        self._ensure_running()
        groups = self._shards.get(self._log.partition_of(group_id).index)
        if groups is None or not groups.is_loaded:
            raise CoordinatorLoading(f"the coordinator of {group_id} is still loading its state; retry")
        self._log.ensure_readable(group_id)
        return groups

    async def ensure(self, group_id: str) -> GroupShard:
        """Like `of`, but create `__consumer_offsets` if it does not exist yet."""
        self._ensure_running()
        await self._log.ensure()
        return self.of(group_id)

    def ensure_loaded(self) -> None:
        """Raise unless all groups of this broker are loaded."""
        self._ensure_running()
        if not self.is_loaded:
            raise CoordinatorLoading("the coordinator is still loading its state; retry")

    # Leaderships

    def begin(self, partition: Partition) -> None:
        """A leadership of this broker for the partition begins."""
        if partition.topic != CONSUMER_OFFSETS or self._is_stopped.is_set():
            return
        self._drop(partition.index)
        groups = GroupShard(
            OffsetsLogPartition(self._log, partition), self._topics_image_cache.view, self.config, self._now_ms
        )
        self._shards[partition.index] = groups
        self._start_to_load(groups)

    def end(self, partition: Partition) -> None:
        """The leadership has ended, or another one begins in a later epoch."""
        groups = self._shards.get(partition.index)
        if groups is not None and groups.partition is partition:
            self._drop(partition.index)

    async def load(self) -> None:
        """Load the groups of current and future leaderships until the coordinator is stopped."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for groups in self._shards.values():
                self._start_to_load(groups)
            await self._is_stopped.wait()

    def _start_to_load(self, groups: GroupShard) -> None:
        if not groups.is_loaded and self._tasks is not None:
            self._tasks.create_task(_load_shard(groups))

    def _drop(self, index: int) -> None:
        """Drop the groups of a partition. A load in progress notices that the leadership is over, and ends."""
        groups = self._shards.pop(index, None)
        if groups is not None:
            groups.close(NotCoordinator)

    # Maintenance

    def forget_topic(self, topic: str) -> None:
        for groups in self:
            groups.forget_topic(topic)

    def expire(self, retention_ms: int) -> None:
        for groups in self:
            groups.expire(retention_ms)

    def stop(self) -> None:
        """Answer all waiting requests, because the broker is shutting down."""
        self._is_stopped.set()
        for groups in self._shards.values():
            groups.close(CoordinatorNotAvailable)

    def _ensure_running(self) -> None:
        if self._is_stopped.is_set():
            raise CoordinatorNotAvailable("the broker is shutting down")
        if self._session_expired():
            raise CoordinatorNotAvailable(
                "the registry session of this broker has expired, so another broker may be the coordinator; retry"
            )


async def _load_shard(groups: GroupShard) -> None:
    with suppress(NotCoordinator):  # the new leader loads the partition itself
        await groups.load()
