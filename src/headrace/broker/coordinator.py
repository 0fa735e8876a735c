"""The coordinator of groups: knows which of them are here, and reads those whose lead has just begun.

A group belongs to one partition of `__consumer_offsets`, and whoever leads that partition coordinates it. `begin` and
`end` are told of every lead; in between there is one `LedGroups`, made anew for each lead. Until it is loaded, all that
concerns its groups is refused as "loading"; groups whose records turn out to be damaged are refused from then on, and
the others go on. All other groups are refused with `NotCoordinator`, also where this broker has not heard yet that
it leads them, or that there is a log at all: who answers without knowing sends readers back to the beginning.

While the broker's registry session has expired, all groups are rejected with `CoordinatorNotAvailable`: another broker
may coordinate them by now.
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
    """Iterates over what is here and loaded."""

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
        self._now_ms = AnchoredClock(clock).now_ms  # a jump of the wall clock must not expire every session
        self._led: dict[int, LedGroups] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._is_stopped = asyncio.Event()

    def __iter__(self) -> Iterator[LedGroups]:
        return (groups for groups in self._led.values() if groups.is_loaded)

    @property
    def is_loaded(self) -> bool:
        """Nothing that is here waits to be read."""
        return all(groups.is_loaded for groups in self._led.values())

    # Who is here

    def of(self, group_id: str) -> LedGroups:
        """The groups among which this one is, or would be. Raises unless requests for it can be answered here and now:
        ask again after every wait."""
        self._ensure_running()
        groups = self._led.get(self._log.partition_of(group_id).index)
        if groups is None or not groups.is_loaded:
            raise CoordinatorLoading(f"the coordinator of {group_id} is still reading its log")
        self._log.ensure_readable(group_id)
        return groups

    async def ensure(self, group_id: str) -> LedGroups:
        """The same for the first group of all, too, for which the log is made."""
        self._ensure_running()
        await self._log.ensure()
        return self.of(group_id)

    def ensure_loaded(self) -> None:
        """Raise unless all groups that are here can be told."""
        self._ensure_running()
        if not self.is_loaded:
            raise CoordinatorLoading("the coordinator is still reading its log")

    # Leads

    def begin(self, partition: Partition) -> None:
        """This broker leads the partition from now on."""
        if partition.topic != CONSUMER_OFFSETS or self._is_stopped.is_set():
            return
        self._drop(partition.index)
        groups = LedGroups(OffsetsLead(self._log, partition), self._seen.view, self.config, self._now_ms)
        self._led[partition.index] = groups
        self._start_to_load(groups)

    def end(self, partition: Partition) -> None:
        """It leads it no longer, or no longer in the epoch in which it did."""
        groups = self._led.get(partition.index)
        if groups is not None and groups.partition is partition:
            self._drop(partition.index)

    async def load(self) -> None:
        """Read what this broker has begun to lead, and all that it will; returns when the coordinator is stopped."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for groups in self._led.values():
                self._start_to_load(groups)
            await self._is_stopped.wait()

    def _start_to_load(self, groups: LedGroups) -> None:
        if not groups.is_loaded and self._tasks is not None:
            self._tasks.create_task(_load(groups))

    def _drop(self, index: int) -> None:
        """A load that is under way ends by itself: it finds that the lead is over, and nobody has what it has read."""
        groups = self._led.pop(index, None)
        if groups is not None:
            groups.close(NotCoordinator)

    # What time and others ask

    def forget_topic(self, topic: str) -> None:
        for groups in self:
            groups.forget_topic(topic)

    def expire(self, retention_ms: int) -> None:
        for groups in self:
            groups.expire(retention_ms)

    def stop(self) -> None:
        """Answer everybody who waits: the broker is going down."""
        self._is_stopped.set()
        for groups in self._led.values():
            groups.close(CoordinatorNotAvailable)

    def _ensure_running(self) -> None:
        if self._is_stopped.is_set():
            raise CoordinatorNotAvailable("the broker is going down")
        if self._session_expired():
            raise CoordinatorNotAvailable("this broker's session has expired, and another may coordinate; ask again")


async def _load(groups: LedGroups) -> None:
    with suppress(NotCoordinator):  # whoever leads the partition now reads it, too
        await groups.load()
