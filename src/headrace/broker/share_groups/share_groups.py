"""The share groups of one partition of `__consumer_offsets`: runs their state machines and stores their members.

- The events of a state machine are appended and applied in one step; the response is sent when they are durable.
- Only membership is stored here. The acks logs of the topics have the settled offsets of the groups.
- `GroupShard` decides whether a group id belongs to a share group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from headrace.broker.coordination.timers import Timers
from headrace.broker.groups.offsets_log import OffsetsLogPartition, wait_until_durable
from headrace.broker.share_groups.share_group_records import (
    StoredShareGroupEvent,
    share_group_records,
    share_group_tombstone,
)
from headrace.machines.groups.consumer_group_heartbeat import JOIN_EPOCH
from headrace.machines.groups.group_topics import TopicsImage
from headrace.machines.share_groups.share_group import (
    ShareGroup,
    ShareGroupEpochSet,
    ShareGroupEvent,
    ShareHeartbeat,
    ShareHeartbeatResult,
    ShareSessionConfig,
)
from headrace.model.errors import GroupIdNotFound, HeadraceError, InconsistentGroupProtocol

log = logging.getLogger(__name__)

_RETRY_MS = 1000


class ShareGroups:
    """The share groups for one leader term. `timing_of` returns the configuration of a group."""

    def __init__(
        self,
        log_partition: OffsetsLogPartition,
        image: Callable[[], TopicsImage],
        timing_of: Callable[[str], ShareSessionConfig],
        now_ms: Callable[[], int],
    ) -> None:
        self.groups: dict[str, ShareGroup] = {}
        self._log = log_partition
        self._image = image
        self._timing_of = timing_of
        self._now_ms = now_ms
        self._timers = Timers(now_ms)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self.groups

    def refuse(self, group_id: str) -> None:
        """Raise if the group is a share group: it has no consumers and no committed offsets."""
        if group_id in self.groups:
            raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")

    def reject_classic_member(self, group_id: str) -> None:
        """Raise the error for members of the classic protocol if the group is a share group."""
        if group_id in self.groups:
            raise InconsistentGroupProtocol(f"group {group_id} is a share group")

    # Load

    def replay(self, stored: StoredShareGroupEvent) -> None:
        """Apply a record of the log. Call `restore` after the last one."""
        if stored.event is None:
            self.groups.pop(stored.group_id, None)
        else:
            self.groups.setdefault(stored.group_id, ShareGroup(stored.group_id)).apply([stored.event])

    def restore(self) -> None:
        now_ms = self._now_ms()
        for group_id, group in list(self.groups.items()):
            if group.epoch:
                self._update_timer(group.restored(self._timing_of(group_id), now_ms))
            else:
                del self.groups[group_id]  # only tombstones are left

    # Members

    async def heartbeat(self, request: ShareHeartbeat) -> ShareHeartbeatResult:
        """Let a member join, report or leave."""
        group, image = self.groups.get(request.group_id), self._image()
        if group is None:
            if request.member_epoch != JOIN_EPOCH:
                raise GroupIdNotFound(f"Share group {request.group_id} not found.")
            group = ShareGroup(request.group_id)
        if request.member_epoch < JOIN_EPOCH:
            self._store(group, group.leave(request, image))
            result = ShareHeartbeatResult(member_id=request.member_id, member_epoch=request.member_epoch)
        else:
            self._store(group, group.heartbeat(request, image))
            result = group.report(request, image, self._timing_of(request.group_id), self._now_ms())
            self._set_timer(group, group.members[request.member_id].deadline_ms)
        await wait_until_durable(self._log.settled())
        return result

    async def ensure(self, group_id: str) -> None:
        """Create the group without members unless it exists."""
        if group_id not in self.groups:
            self._store(ShareGroup(group_id), [ShareGroupEpochSet(1, 0)])
            await wait_until_durable(self._log.settled())

    async def end(self, group_id: str) -> None:
        """Delete a group without members, after its settled offsets were deleted."""
        self.groups[group_id].ensure_no_members()
        wait = self._log.append(group_id, [share_group_tombstone(group_id)])
        del self.groups[group_id]
        self._timers.cancel(group_id)
        await wait_until_durable(wait)

    def stop(self) -> None:
        self._timers.stop()

    def _store(self, group: ShareGroup, events: Sequence[ShareGroupEvent]) -> None:
        """Append and apply events in one step. If this raises, nothing has changed."""
        if not events:
            return
        wait = self._log.append(group.group_id, share_group_records(group.group_id, events))
        if wait is not None:
            wait.add_done_callback(asyncio.Future.exception)  # readers wait until the whole log is committed
        group.apply(events)
        self.groups[group.group_id] = group

    def _update_timer(self, group: ShareGroup) -> None:
        deadline_ms = group.deadline()
        if deadline_ms is not None:
            self._set_timer(group, deadline_ms)

    def _set_timer(self, group: ShareGroup, deadline_ms: int) -> None:
        self._timers.set(group.group_id, deadline_ms, partial(self._on_timer, group))

    def _on_timer(self, group: ShareGroup) -> None:
        if self.groups.get(group.group_id) is not group:
            return
        now_ms = self._now_ms()
        try:
            self._store(group, group.tick(now_ms, self._image()))
        except HeadraceError as error:
            log.warning("removing expired members of a share group failed group=%s error=%s", group.group_id, error)
            self._set_timer(group, now_ms + _RETRY_MS)
            return
        self._update_timer(group)
