"""The share groups of one partition of `__consumer_offsets`: runs their machines, and keeps who is in them.

What a machine decides is appended, applied in the same step, and told when it is durable. Only membership is kept here:
what the groups have settled lies beside the partitions that they read. Whether a group may be of this kind at all is
for `LedGroups` to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from headrace.broker.alarms import Alarms
from headrace.broker.offsets_log import OffsetsLead, durable
from headrace.broker.share_group_records import ShareGroupStored, share_end_record, share_group_records
from headrace.machines.consumer_group_heartbeat import JOIN_EPOCH
from headrace.machines.consumer_group_topics import TopicView
from headrace.machines.share_groups import (
    ShareAnswer,
    ShareEpochSet,
    ShareGroup,
    ShareGroupEvent,
    ShareHeartbeat,
    ShareTiming,
)
from headrace.model.errors import GroupIdNotFound, HeadraceError, InconsistentGroupProtocol

log = logging.getLogger(__name__)

_RETRY_MS = 1000


class ShareGroups:
    """Those of one lead. `timing_of` asks for the configuration of a group."""

    def __init__(
        self,
        lead: OffsetsLead,
        view: Callable[[], TopicView],
        timing_of: Callable[[str], ShareTiming],
        now_ms: Callable[[], int],
    ) -> None:
        self.groups: dict[str, ShareGroup] = {}
        self._lead = lead
        self._view = view
        self._timing_of = timing_of
        self._now_ms = now_ms
        self._alarms = Alarms(now_ms)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self.groups

    def refuse(self, group_id: str) -> None:
        """Raise if the group is one of these: members of another kind, or offsets, are not for them."""
        if group_id in self.groups:
            raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")

    def refuse_classic(self, group_id: str) -> None:
        """The same for who wants to join by the classic protocol."""
        if group_id in self.groups:
            raise InconsistentGroupProtocol(f"group {group_id} is a share group")

    # Coming back

    def replay(self, stored: ShareGroupStored) -> None:
        """Take in a record of the log; when all are read, `restore`."""
        if stored.event is None:
            self.groups.pop(stored.group_id, None)
        else:
            self.groups.setdefault(stored.group_id, ShareGroup(stored.group_id)).apply([stored.event])

    def restore(self) -> None:
        now_ms = self._now_ms()
        for group_id, group in list(self.groups.items()):
            if group.epoch:
                self._arm(group.restored(self._timing_of(group_id), now_ms))
            else:
                del self.groups[group_id]  # only tombstones were left of it

    # Members

    async def heartbeat(self, beat: ShareHeartbeat) -> ShareAnswer:
        """A member joins, reports or leaves."""
        group, view = self.groups.get(beat.group_id), self._view()
        if group is None:
            if beat.member_epoch != JOIN_EPOCH:
                raise GroupIdNotFound(f"Share group {beat.group_id} not found.")
            group = ShareGroup(beat.group_id)
        if beat.member_epoch < JOIN_EPOCH:
            self._store(group, group.leave(beat, view))
            answer = ShareAnswer(member_id=beat.member_id, member_epoch=beat.member_epoch)
        else:
            self._store(group, group.heartbeat(beat, view))
            answer = group.report(beat, view, self._timing_of(beat.group_id), self._now_ms())
            self._set_alarm(group, group.members[beat.member_id].deadline_ms)
        await durable(self._lead.settled())
        return answer

    async def ensure(self, group_id: str) -> None:
        """Make the group if it does not exist, without members."""
        if group_id not in self.groups:
            self._store(ShareGroup(group_id), [ShareEpochSet(1, 0)])
            await durable(self._lead.settled())

    async def end(self, group_id: str) -> None:
        """A group without members is over; what it has settled must be forgotten by then."""
        self.groups[group_id].ensure_vacant()
        wait = self._lead.append(group_id, [share_end_record(group_id)])
        del self.groups[group_id]
        self._alarms.cancel(group_id)
        await durable(wait)

    def stop(self) -> None:
        self._alarms.stop()

    def _store(self, group: ShareGroup, events: Sequence[ShareGroupEvent]) -> None:
        """Append and apply in one step. Raises with nothing changed."""
        if not events:
            return
        wait = self._lead.append(group.group_id, share_group_records(group.group_id, events))
        if wait is not None:
            wait.add_done_callback(asyncio.Future.exception)  # readers wait until the whole log is committed
        group.apply(events)
        self.groups[group.group_id] = group

    def _arm(self, group: ShareGroup) -> None:
        deadline_ms = group.deadline()
        if deadline_ms is not None:
            self._set_alarm(group, deadline_ms)

    def _set_alarm(self, group: ShareGroup, deadline_ms: int) -> None:
        self._alarms.set(group.group_id, deadline_ms, partial(self._on_alarm, group))

    def _on_alarm(self, group: ShareGroup) -> None:
        if self.groups.get(group.group_id) is not group:
            return
        now_ms = self._now_ms()
        try:
            self._store(group, group.tick(now_ms, self._view()))
        except HeadraceError as error:
            log.warning("removing expired members of a share group failed group=%s error=%s", group.group_id, error)
            self._set_alarm(group, now_ms + _RETRY_MS)
            return
        self._arm(group)
