"""A consumer group of Kafka's classic protocol, whose members assign the partitions themselves. Pure.

The group knows neither partitions nor assignments. It collects the members of a generation, lets one of them (the
leader) assign, and rejects requests of members of earlier generations (I18).

- Methods take the time as an argument and return effects.
- Requests that may wait (`join`, `sync`) have a token, and a `SendResponse` effect of this or a later call completes
  them. The other requests raise their error.
- `tick` must be called when `deadline` has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.machines.groups.group_rebalance import GroupRebalance, StoringAssignment, StoringReplacement
from headrace.machines.groups.group_roster import GroupMember
from headrace.machines.groups.group_state import (
    Effect,
    GroupConfig,
    GroupState,
    JoinRequest,
    LeavingMember,
    OffsetRetention,
    ResponseToken,
    SendResponse,
    SyncRequest,
    failed_join,
)
from headrace.machines.groups.group_topics import CONSUMER_PROTOCOL_TYPE
from headrace.model.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupMaxSizeReached,
    GroupNotEmpty,
    HeadraceError,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from headrace.wire.messages.groups import DescribedGroup, DescribedGroupMember, MemberResponse, SyncGroupResponse
from headrace.wire.state_records.offsets_records import GroupMetadataValue


class ClassicGroup(GroupRebalance):
    def __init__(self, group_id: str, config: GroupConfig, now_ms: int) -> None:
        super().__init__(config, now_ms)
        self.group_id = group_id

    @classmethod
    def restore(cls, group_id: str, config: GroupConfig, snapshot: GroupMetadataValue, now_ms: int) -> ClassicGroup:
        """Return the group as stored: stable, and every member has a whole session timeout to send a heartbeat."""
        group = cls(group_id, config, now_ms)
        group.start_restored(snapshot, now_ms)
        # Rebalance if the size limit was lowered, which rejects the last members to rejoin, or if the snapshot
        # requests it.
        if len(group.roster) > config.max_size or (snapshot.members and snapshot.leader is None):
            group.prepare(now_ms)
        return group

    @classmethod
    def of_generation(
        cls, group_id: str, config: GroupConfig, members: Iterable[GroupMember], generation_id: int, now_ms: int
    ) -> ClassicGroup:
        """Return a stable group of members with a common protocol; each has a whole session timeout."""
        group = cls(group_id, config, now_ms)
        group.start_stable(members, generation_id, now_ms)
        return group

    @property
    def has_no_members(self) -> bool:
        """Whether there are neither members nor pending member ids."""
        return self.state is GroupState.EMPTY and not self.roster.pending

    # JoinGroup

    def join(self, token: ResponseToken, request: JoinRequest, now_ms: int) -> list[Effect]:
        """The response is sent when the next generation begins, or at once with an error."""
        assert token is not None
        try:
            self._ensure_alive()
            self.accept_join(token, request, now_ms)
        except HeadraceError as error:
            member_id = "" if isinstance(error, GroupMaxSizeReached) else request.member_id
            if isinstance(error, MemberIdRequired):
                member_id = request.new_member_id
            self.outbox.append(SendResponse(token, failed_join(error.code, member_id)))
        return self._effects()

    # SyncGroup

    def sync(self, token: ResponseToken, request: SyncRequest, now_ms: int) -> list[Effect]:
        """The response contains the member's assignment, and is sent when the leader's assignment is stored."""
        assert token is not None
        try:
            member = self._present_member(request.member_id, request.instance_id, request.generation_id)
            self._ensure_same_protocol(request)
            if self.state is GroupState.PREPARING_REBALANCE:
                raise RebalanceInProgress
        except HeadraceError as error:
            self.outbox.append(SendResponse(token, SyncGroupResponse(error_code=error.code)))
            return self._effects()
        self.renew_session(member, now_ms)
        if self.state is GroupState.STABLE:
            self.roster.unsynced.discard(request.member_id)
            self.outbox.append(SendResponse(token, self.present_assignment(member)))
        else:
            self.wait_sync(member, token)
            if request.member_id == self.roster.leader:
                storing = StoringAssignment(request.generation_id, request.assignments)
                self.store(self.snapshot(request.assignments), storing)
        return self._effects()

    def stored(self, ticket: int, now_ms: int) -> list[Effect]:
        """The record of `StoreMetadata` is committed. No effect if the group is in a later generation by now."""
        storing = self.storing.pop(ticket, None)
        if storing is None or storing.generation_id != self.generation_id:
            return []
        if isinstance(storing, StoringAssignment):
            if self.state is GroupState.COMPLETING_REBALANCE:
                self.assign(storing.assignments, 0, now_ms)
                self.enter(GroupState.STABLE, now_ms)
        elif self._is_replacing(storing):
            result = self.present_generation(storing.member, skip_assignment=storing.skips_assignment)
            if not storing.skips_assignment:
                # A client that does not know `skip_assignment` would assign again if the response named it as the
                # leader.
                result.leader, result.members = storing.former_leader, []
            self.respond_join(storing.member, result)
            self.renew_session(storing.member, now_ms)
        return self._effects()

    def store_failed(self, ticket: int, error_code: int, now_ms: int) -> list[Effect]:
        storing = self.storing.pop(ticket, None)
        if storing is None or storing.generation_id != self.generation_id:
            return []
        if isinstance(storing, StoringAssignment):
            if self.state is GroupState.COMPLETING_REBALANCE:
                self.assign({}, error_code, now_ms)
                self.prepare(now_ms)
        elif self._is_replacing(storing):
            self.fail_requests(storing.member, error_code, "")
            self.roster.set_protocols(storing.member, storing.replaced_member.protocols)
            replaced_member = self.roster.rename(storing.member, storing.replaced_member.member_id)
            self.renew_session(replaced_member, now_ms)
        return self._effects()

    def _is_replacing(self, storing: StoringReplacement) -> bool:
        # Not if a rebalance has begun, or if another process has replaced the member again.
        return self.state is GroupState.STABLE and storing.member.join_token is storing.token

    # Heartbeat, LeaveGroup, OffsetCommit

    def heartbeat(self, member_id: str, generation_id: int, now_ms: int, *, instance_id: str | None = None) -> None:
        """Renew the member's session; raise `RebalanceInProgress` if it must rejoin."""
        member = self._present_member(member_id, instance_id, generation_id)
        self.renew_session(member, now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgress

    def check_commit(self, member_id: str, generation_id: int, now_ms: int, *, instance_id: str | None = None) -> None:
        """Raise unless this caller may commit offsets; a commit renews the member's session."""
        self._ensure_alive()
        if generation_id < 0 and self.state is GroupState.EMPTY:
            return  # an administrator, or a consumer without group management
        if generation_id < 0 and not member_id and instance_id is None:
            raise UnknownMemberId(f"group {self.group_id} has members; only they may commit")
        member = self._present_member(member_id, instance_id, generation_id)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgress
        self.renew_session(member, now_ms)

    def leave(self, departures: Sequence[LeavingMember], now_ms: int) -> tuple[list[MemberResponse], list[Effect]]:
        self._ensure_alive()
        departed = []
        members_before = len(self.roster)
        for departure in departures:
            try:
                self._depart(departure)
                error_code = 0
            except HeadraceError as error:
                error_code = error.code
            departed.append(MemberResponse(departure.member_id, departure.instance_id, error_code))
        if self.state is GroupState.PREPARING_REBALANCE:
            self.complete_if_all_joined(now_ms)
        elif len(self.roster) < members_before:
            self.prepare(now_ms)
        return departed, self._effects()

    def _depart(self, departure: LeavingMember) -> None:
        if self.roster.pending.pop(departure.member_id, None) is not None:
            return
        # An administrator removes a static member by its instance id alone.
        member = None if departure.member_id else self.roster.static_member(departure.instance_id)
        self.remove_member(member or self.roster.member(departure.member_id, departure.instance_id))

    # Time

    def deadline(self) -> int | None:
        """When `tick` is due; it may be earlier than necessary, but never later."""
        return self.wake_ms

    def tick(self, now_ms: int) -> list[Effect]:
        if self.wake_ms is None or now_ms < self.wake_ms:
            return []
        for member_id in [m for m, deadline_ms in self.roster.pending.items() if deadline_ms <= now_ms]:
            del self.roster.pending[member_id]
            self._complete_without_lost_members(now_ms)
        for member in list(self.roster):
            self._expire_session(member, now_ms)
        if self.join_deadline_ms is not None and self.join_deadline_ms <= now_ms:
            self.join_time_is_up(now_ms)
        if self.sync_deadline_ms is not None and self.sync_deadline_ms <= now_ms:
            self.sync_time_is_up(now_ms)
        self.wake_ms = self.earliest_deadline_ms()
        return self._effects()

    def _expire_session(self, member: GroupMember, now_ms: int) -> None:
        due = member.session_deadline_ms is not None and member.session_deadline_ms <= now_ms
        if not due or self.roster.members.get(member.member_id) is not member:
            return
        if member.is_waiting and not member.is_new:
            member.session_deadline_ms = None  # renewed with the response for which the member waits
            return
        self.remove_member(member)
        if self.state is GroupState.PREPARING_REBALANCE:
            self._complete_without_lost_members(now_ms)
        else:
            self.prepare(now_ms)

    def _complete_without_lost_members(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING_REBALANCE and self.roster.all_joined:
            self.complete_join(now_ms)

    def rebalance(self, now_ms: int) -> list[Effect]:
        """Request all members to rejoin."""
        self.prepare(now_ms)
        return self._effects()

    # Administration

    def describe(self) -> DescribedGroup:
        name = self.protocol_name if self.state is GroupState.STABLE else None
        return DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=name or "",
            members=[
                DescribedGroupMember(
                    m.member_id, m.instance_id, m.client_id, m.client_host, m.metadata(name), m.assignment
                )
                for m in self.roster
            ],
        )

    def delete(self, now_ms: int) -> list[Effect]:
        """Raise `GroupNotEmpty`, or `GroupIdNotFound` if the group is dead already."""
        self.check_exists()
        if self.state is not GroupState.EMPTY:
            raise GroupNotEmpty(f"group {self.group_id} has members")
        self.enter(GroupState.DEAD, now_ms)
        self.wake_ms = None
        self.store(None)
        return self._effects()

    def close(self, error_code: int, now_ms: int) -> list[Effect]:
        """Fail all waiting requests, because this broker no longer coordinates the group; nothing is stored."""
        for member in self.roster:
            self.fail_requests(member, error_code, member.member_id)
        self.enter(GroupState.DEAD, now_ms)
        self.wake_ms = None
        return self._effects()

    def check_exists(self) -> None:
        if self.state is GroupState.DEAD:
            raise GroupIdNotFound(f"group {self.group_id} does not exist")

    def check_offset_delete(self) -> None:
        """Raise unless offsets may be deleted by request; then check each topic with `is_subscribed_to`."""
        self.check_exists()
        if self.state is not GroupState.EMPTY and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise GroupNotEmpty(f"group {self.group_id} has members, and their subscriptions are not known")

    def is_subscribed_to(self, topic: str) -> bool:
        topics = self.topics
        return topic in topics if topics is not None else self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def offset_retention(self) -> OffsetRetention | None:
        """Return how the group's committed offsets expire; None if they do not expire now."""
        topics = self.topics or frozenset()
        if self.protocol_type is None:
            return OffsetRetention(None, topics)
        if self.state is GroupState.EMPTY:
            since_ms = self.state_timestamp_ms
            return OffsetRetention(since_ms if since_ms >= 0 else None, topics)
        if self.state is GroupState.STABLE and self.topics is not None:
            return OffsetRetention(None, topics)
        return None

    # Checks

    def _ensure_alive(self) -> None:
        if self.state is GroupState.DEAD:
            raise CoordinatorNotAvailable(f"this broker no longer coordinates group {self.group_id}; retry")

    def _present_member(self, member_id: str, instance_id: str | None, generation_id: int) -> GroupMember:
        self._ensure_alive()
        member = self.roster.member(member_id, instance_id)
        if generation_id != self.generation_id:
            raise IllegalGeneration(f"group {self.group_id} is at generation {self.generation_id}")
        return member

    def _ensure_same_protocol(self, request: SyncRequest) -> None:
        has_same_type = request.protocol_type in (None, self.protocol_type)
        if not has_same_type or request.protocol_name not in (None, self.protocol_name):
            raise InconsistentGroupProtocol(f"group {self.group_id} uses {self.protocol_name}")

    def _effects(self) -> list[Effect]:
        effects = self.outbox[:]
        self.outbox.clear()
        return effects
