"""The group coordinator: the groups of all partitions of `__consumer_offsets` that this broker leads.

A group belongs to one partition of `__consumer_offsets`, and the leader of the partition is its coordinator. `begin`
and `end` are called at the start and the end of each leadership; in between there is one `LedGroups`.

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

from headrace.broker.catalogue import Catalogue
from headrace.broker.consumer_groups import TopicsSeen
from headrace.broker.led_groups import GroupsConfig, LedGroups
from headrace.broker.offsets_log import OffsetsLead, OffsetsLog
from headrace.broker.partition import Partition
from headrace.machines.consumer_groups import ConsumerGroupConfig
from headrace.machines.group_migration import MigrationPolicy
from headrace.machines.group_state import GroupConfig
from headrace.machines.share_groups import ShareTiming
from headrace.model.errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from headrace.model.names import CONSUMER_OFFSETS
from headrace.runtime.clock import AnchoredClock, Clock


class Coordinator:
    """Iterates over the loaded `LedGroups`."""

    def __init__(
        self,
        offsets_log: OffsetsLog,
        catalogue: Catalogue,
        config: GroupConfig,
        consumer_config_of: Callable[[str], ConsumerGroupConfig],
        share_timing_of: Callable[[str], ShareTiming],
        metadata_bytes_max: int,
        migration_policy: MigrationPolicy,
        clock: Clock,
        session_expired: Callable[[], bool],
    ) -> None:
        self.config = GroupsConfig(config, consumer_config_of, share_timing_of, metadata_bytes_max, migration_policy)
        self._log = offsets_log
        self._session_expired = session_expired
        self._seen = TopicsSeen(catalogue)
        self._now_ms = AnchoredClock(clock).now_ms  # so that a jump of the wall clock does not expire all sessions
        self._led: dict[int, LedGroups] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._is_stopped = asyncio.Event()

    def __iter__(self) -> Iterator[LedGroups]:
        return (groups for groups in self._led.values() if groups.is_loaded)

    @property
    def is_loaded(self) -> bool:
        """Whether no partition is still being loaded."""
        return all(groups.is_loaded for groups in self._led.values())

    # Lookup

    def of(self, group_id: str) -> LedGroups:
        """Return the groups of the partition to which this group belongs. Raise unless requests for it can be served
        now; call it again after every await."""
        self._ensure_running()
        groups = self._led.get(self._log.partition_of(group_id).index)
        if groups is None or not groups.is_loaded:
            raise CoordinatorLoading(f"the coordinator of {group_id} is still loading its state; retry")
        self._log.ensure_readable(group_id)
        return groups

    async def ensure(self, group_id: str) -> LedGroups:
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
        groups = LedGroups(OffsetsLead(self._log, partition), self._seen.view, self.config, self._now_ms)
        self._led[partition.index] = groups
        self._start_to_load(groups)

    def end(self, partition: Partition) -> None:
        """The leadership has ended, or another one begins in a later epoch."""
        groups = self._led.get(partition.index)
        if groups is not None and groups.partition is partition:
            self._drop(partition.index)

    async def load(self) -> None:
        """Load the groups of current and future leaderships until the coordinator is stopped."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for groups in self._led.values():
                self._start_to_load(groups)
            await self._is_stopped.wait()

    def _start_to_load(self, groups: LedGroups) -> None:
        if not groups.is_loaded and self._tasks is not None:
            self._tasks.create_task(_load(groups))

    def _drop(self, index: int) -> None:
        """Drop the groups of a partition. A load in progress notices that the leadership is over, and ends."""
        groups = self._led.pop(index, None)
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
        for groups in self._led.values():
            groups.close(CoordinatorNotAvailable)

    def _ensure_running(self) -> None:
        if self._is_stopped.is_set():
            raise CoordinatorNotAvailable("the broker is shutting down")
        if self._session_expired():
            raise CoordinatorNotAvailable(
                "the registry session of this broker has expired, so another broker may be the coordinator; retry"
            )


async def _load(groups: LedGroups) -> None:
    with suppress(NotCoordinator):  # the new leader loads the partition itself
        await groups.load()
