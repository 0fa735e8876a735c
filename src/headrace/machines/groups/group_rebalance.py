"""The rebalance of a classic consumer group: JoinGroup, a new generation, the assignment.

`ClassicGroup` checks requests and calls these steps; responses and records to store are added to `outbox`.

- The generation never decreases.
- A waiting JoinGroup or SyncGroup gets exactly one response, at the latest when its member is removed.
- `wake_ms` is never later than the earliest deadline.
- `accept_join` raises an error for a rejected request, and `ClassicGroup` responds with it. Otherwise the request waits
  in its member, or its response is in the outbox.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headrace.machines.groups.group_roster import GroupMember, GroupRoster
from headrace.machines.groups.group_state import (
    Effect,
    GroupConfig,
    GroupState,
    JoinRequest,
    ResponseToken,
    SendResponse,
    StoreMetadata,
    failed_join,
)
from headrace.machines.groups.group_topics import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from headrace.model.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from headrace.wire.messages.groups import JoinGroupResponse, JoinGroupResponseMember, SyncGroupResponse
from headrace.wire.state_records.offsets_records import GroupMemberMetadata, GroupMetadataValue

# Prevents a busy loop in a group of absent static members with a rebalance timeout of 0.
_POSTPONE_MS_MIN = 100


class StoringAssignment(msgspec.Struct, frozen=True):
    """The leader's assignment is being stored; members get it when it is durable."""

    generation_id: int
    assignments: Mapping[str, bytes]


class StoringReplacement(msgspec.Struct, frozen=True):
    """The new member id of a static member is being stored, within the same generation."""

    generation_id: int
    member: GroupMember
    replaced_member: GroupMember
    former_leader: str
    token: ResponseToken
    skips_assignment: bool


Storing = StoringAssignment | StoringReplacement


class GroupRebalance:
    """The state of a classic group, and the steps that `ClassicGroup` combines to answer requests."""

    def __init__(self, config: GroupConfig, now_ms: int) -> None:
        self.config = config
        self.roster = GroupRoster()
        self.state = GroupState.EMPTY
        self.state_timestamp_ms = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.topics: frozenset[str] | None = None
        """The topics to which the members subscribe; None if unknown."""
        self.is_first = False
        """The rebalance began with an empty group, so it waits briefly for more members."""
        self.member_joined_meanwhile = False
        self.outbox: list[Effect] = []
        self.storing: dict[int, Storing] = {}
        self.join_deadline_ms: int | None = None
        self.sync_deadline_ms: int | None = None
        self.wake_ms: int | None = None
        self._first_delay_ms = 0
        self._first_delay_left_ms = 0
        self._last_ticket = 0

    def enter(self, state: GroupState, now_ms: int) -> None:
        self.state = state
        self.state_timestamp_ms = now_ms

    # JoinGroup: a new member, a member that rejoins, or the new process of a static member

    def accept_join(self, token: ResponseToken, request: JoinRequest, now_ms: int) -> None:
        check_session_timeout(self.config, request.session_timeout_ms)
        self._ensure_room(request, now_ms)
        self._ensure_protocols(request)
        if not request.member_id:
            self._join_without_id(token, request, now_ms)
        elif request.member_id in self.roster.pending and request.instance_id is None:
            self._add(token, request, request.member_id, now_ms)
        else:
            self._rejoin(token, request, now_ms)

    def _join_without_id(self, token: ResponseToken, request: JoinRequest, now_ms: int) -> None:
        replaced_member = self.roster.static_member(request.instance_id)
        if replaced_member is not None:
            self._replace(token, replaced_member, request, now_ms)
        elif request.instance_id is None and request.require_known_member_id:
            # Otherwise a client that retries after a lost response would be counted twice.
            deadline_ms = self.roster.pending[request.new_member_id] = now_ms + request.session_timeout_ms
            self._wake_at(deadline_ms)
            raise MemberIdRequired(f"join again as {request.new_member_id}")
        else:
            self._add(token, request, request.new_member_id, now_ms)

    def _add(self, token: ResponseToken, request: JoinRequest, member_id: str, now_ms: int) -> None:
        if not self.roster.members:
            self.protocol_type = request.protocol_type
        if self.state is GroupState.PREPARING_REBALANCE:
            self.member_joined_meanwhile = True
        member = GroupMember.joining(member_id, request)
        self.roster.add(member)
        self.wait_join(member, token)
        # The member cannot send heartbeats before its response, but the group must not wait for a client that is gone.
        self.renew_session(member, now_ms, self.config.new_member_join_timeout_ms)
        self.prepare_or_complete(now_ms)

    def _rejoin(self, token: ResponseToken, request: JoinRequest, now_ms: int) -> None:
        member = self.roster.member(request.member_id, request.instance_id)
        may_stay = self.state is GroupState.COMPLETING_REBALANCE or (
            # The leader rejoins to request a new assignment.
            self.state is GroupState.STABLE and member.member_id != self.roster.leader
        )
        if may_stay and member.protocols == request.protocols:
            self.outbox.append(SendResponse(token, self.present_generation(member)))
            return
        self.roster.update(member, request)
        self.wait_join(member, token)
        self.prepare_or_complete(now_ms)

    def _replace(self, token: ResponseToken, replaced_member: GroupMember, request: JoinRequest, now_ms: int) -> None:
        """A static member returned as a new process; a stable group need not rebalance."""
        former_leader = self.roster.leader or ""
        # Another process uses the instance id now: fence the former one, including its waiting requests.
        self.fail_requests(replaced_member, FencedInstanceId.code, replaced_member.member_id)
        member = self.roster.rename(replaced_member, request.new_member_id)
        self.renew_session(member, now_ms)
        self.roster.update(member, request)
        self.wait_join(member, token)
        if self.state is GroupState.PREPARING_REBALANCE:
            self.complete_if_all_joined(now_ms)
        elif self.state is GroupState.STABLE and self._fits_generation(replaced_member, member):
            storing = StoringReplacement(
                self.generation_id, member, replaced_member, former_leader, token, request.skips_assignment
            )
            self.store(self.snapshot(), storing)
        else:
            self.prepare(now_ms)

    def _fits_generation(self, replaced_member: GroupMember, member: GroupMember) -> bool:
        name = self.protocol_name
        if self.roster.vote() != name:
            return False
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return True
        # Compare topics only: the whole metadata contains the owned partitions, and differs after every restart.
        return subscribed_topics(replaced_member.metadata(name)) == subscribed_topics(member.metadata(name))

    def _ensure_room(self, request: JoinRequest, now_ms: int) -> None:
        max_size = self.config.max_size
        known = self.roster.members.get(request.member_id)
        if not request.member_id:
            known = self.roster.static_member(request.instance_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            # Only joined members count here: a group that is too large loses the last members to rejoin.
            if (known and known.join_token is not None) or self.roster.joined_count < max_size:
                return
            if known:
                self.remove_member(known)
                self.complete_if_all_joined(now_ms)
        elif known or len(self.roster) < max_size:
            return
        raise GroupMaxSizeReached(f"the group is full: it has {max_size} members (group.max.size)")

    def _ensure_protocols(self, request: JoinRequest) -> None:
        names = {name for name, _ in request.protocols}
        if self.state is GroupState.EMPTY:
            fits = bool(request.protocol_type and names)
        else:
            fits = request.protocol_type == self.protocol_type and self.roster.supports(names)
        if not fits:
            raise InconsistentGroupProtocol(
                f"the group has no protocol in common with {sorted(names)} of type '{request.protocol_type}'"
            )

    # Collect the members

    def prepare_or_complete(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            self.complete_if_all_joined(now_ms)
        else:
            self.prepare(now_ms)

    def prepare(self, now_ms: int) -> None:
        """Request all members to rejoin; the next heartbeat of each member returns it."""
        if self.state is GroupState.COMPLETING_REBALANCE:
            self.assign({}, RebalanceInProgress.code, now_ms)
        self.sync_deadline_ms = None
        self.is_first = self.state is GroupState.EMPTY
        self.member_joined_meanwhile = False
        self.enter(GroupState.PREPARING_REBALANCE, now_ms)
        timeout_ms = self.roster.rebalance_timeout_ms
        if self.is_first:
            self._first_delay_ms = self.config.initial_rebalance_delay_ms
            self._first_delay_left_ms = max(timeout_ms - self._first_delay_ms, 0)
            self._await_joins_until(now_ms + self._first_delay_ms)
        elif self.roster.all_joined:
            self.complete_join(now_ms)
        else:
            self._await_joins_until(now_ms + timeout_ms)

    def complete_if_all_joined(self, now_ms: int) -> None:
        if not self.is_first and self.roster.all_joined:
            self.complete_join(now_ms)

    def join_time_is_up(self, now_ms: int) -> None:
        if self.is_first and self.member_joined_meanwhile and self._first_delay_left_ms > 0:
            # Members are still joining: extend the first delay, within the rebalance timeout.
            self.member_joined_meanwhile = False
            elapsed_ms = self._first_delay_ms
            self._first_delay_ms = min(self.config.initial_rebalance_delay_ms, self._first_delay_left_ms)
            self._first_delay_left_ms = max(self._first_delay_left_ms - elapsed_ms, 0)
            self._await_joins_until(now_ms + self._first_delay_ms)
        else:
            self.complete_join(now_ms)

    def complete_join(self, now_ms: int) -> None:
        """Continue without dynamic members that did not rejoin; static members stay until their session ends."""
        assert self.state is GroupState.PREPARING_REBALANCE
        self.join_deadline_ms = None
        for member in list(self.roster):
            if member.join_token is None and member.instance_id is None:
                self.remove_member(member)
        if self.roster.members and not self.roster.elect_joined_leader():
            self._await_joins_until(now_ms + max(self.roster.rebalance_timeout_ms, _POSTPONE_MS_MIN))
            return
        self.generation_id += 1
        self.protocol_name = self.roster.vote() if self.roster.members else None
        self.topics = self._subscribed_topics()
        if not self.roster.members:
            self.enter(GroupState.EMPTY, now_ms)
            self.store(self.snapshot())
            return
        self.enter(GroupState.COMPLETING_REBALANCE, now_ms)
        for member in self.roster:
            member.is_new = False
            self.roster.unsynced.add(member.member_id)
            self.respond_join(member, self.present_generation(member))
            self.renew_session(member, now_ms)
        self.sync_deadline_ms = now_ms + self.roster.rebalance_timeout_ms
        self._wake_at(self.sync_deadline_ms)

    def sync_time_is_up(self, now_ms: int) -> None:
        """Remove members of the generation that did not send a SyncGroup in time."""
        self.sync_deadline_ms = None
        absent = [self.roster.members[member_id] for member_id in self.roster.unsynced]
        for member in absent:
            self.remove_member(member)
        if absent:
            self.prepare(now_ms)

    # Members and their waiting requests

    def wait_join(self, member: GroupMember, token: ResponseToken) -> None:
        replaced = self.roster.wait_join(member, token)
        if replaced is not None:
            # The member has sent the request again on another connection; the first request must not wait forever.
            result = failed_join(RebalanceInProgress.code, member.member_id)
            self.outbox.append(SendResponse(replaced, result))

    def wait_sync(self, member: GroupMember, token: ResponseToken) -> None:
        self.respond_sync(member, SyncGroupResponse(error_code=RebalanceInProgress.code))
        member.sync_token = token
        self.roster.unsynced.discard(member.member_id)

    def respond_join(self, member: GroupMember, result: JoinGroupResponse) -> None:
        token = self.roster.end_join(member)
        if token is not None:
            self.outbox.append(SendResponse(token, result))

    def respond_sync(self, member: GroupMember, result: SyncGroupResponse) -> None:
        token, member.sync_token = member.sync_token, None
        if token is not None:
            self.outbox.append(SendResponse(token, result))

    def remove_member(self, member: GroupMember) -> None:
        self.fail_requests(member, UnknownMemberId.code, "")
        self.roster.remove(member)

    def fail_requests(self, member: GroupMember, error_code: int, member_id: str) -> None:
        self.respond_join(member, failed_join(error_code, member_id))
        self.respond_sync(member, SyncGroupResponse(error_code=error_code))

    def present_generation(self, member: GroupMember, *, skip_assignment: bool = False) -> JoinGroupResponse:
        leads = self.roster.leader == member.member_id
        return JoinGroupResponse(
            member_id=member.member_id,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.roster.leader or "",
            skip_assignment=skip_assignment and leads,
            members=[
                JoinGroupResponseMember(one.member_id, one.instance_id, one.metadata(self.protocol_name))
                for one in (self.roster if leads else ())
            ],
        )

    def assign(self, assignments: Mapping[str, bytes], error_code: int, now_ms: int) -> None:
        """Set the assignment of every member, or fail their waiting requests with the error."""
        for member in self.roster:
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_token is not None:
                self.respond_sync(member, self.present_assignment(member, error_code))
                self.renew_session(member, now_ms)

    def present_assignment(self, member: GroupMember, error_code: int = 0) -> SyncGroupResponse:
        if error_code:
            return SyncGroupResponse(error_code=error_code)
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    # Time

    def renew_session(self, member: GroupMember, now_ms: int, timeout_ms: int | None = None) -> None:
        member.session_deadline_ms = now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self._wake_at(member.session_deadline_ms)

    def earliest_deadline_ms(self) -> int | None:
        deadlines = [*self.roster.pending.values()]
        deadlines += [m.session_deadline_ms for m in self.roster if m.session_deadline_ms is not None]
        deadlines += [d for d in (self.join_deadline_ms, self.sync_deadline_ms) if d is not None]
        return min(deadlines, default=None)

    def _await_joins_until(self, deadline_ms: int) -> None:
        self.join_deadline_ms = deadline_ms
        self._wake_at(deadline_ms)

    def _wake_at(self, deadline_ms: int) -> None:
        # A renewed session keeps an earlier wake time: waking early is cheap, computing the minimum at every heartbeat
        # is not.
        if self.wake_ms is None or deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    # Stored state

    def store(self, snapshot: GroupMetadataValue | None, storing: Storing | None = None) -> None:
        self._last_ticket += 1
        if storing is not None:
            self.storing[self._last_ticket] = storing
        self.outbox.append(StoreMetadata(self._last_ticket, snapshot))

    def snapshot(
        self, assignments: Mapping[str, bytes] | None = None, *, rebalances: bool = False
    ) -> GroupMetadataValue:
        """Return the current generation, with these assignments if the members do not have them yet. `rebalances`: the
        group must rebalance when it is restored; the snapshot has no leader then."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=None if rebalances else self.roster.leader,
            current_state_timestamp=self.state_timestamp_ms,
            members=[
                GroupMemberMetadata(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(self.protocol_name),
                    member.assignment if assignments is None else assignments.get(member.member_id, b""),
                )
                for member in self.roster
            ],
        )

    def start_restored(self, snapshot: GroupMetadataValue, now_ms: int) -> None:
        self.generation_id = snapshot.generation
        self.protocol_type = snapshot.protocol_type or None
        self.protocol_name = snapshot.protocol
        for stored in snapshot.members:
            member = GroupMember.restored(stored, snapshot.protocol)
            self.roster.add(member)
            self.renew_session(member, now_ms)
        if snapshot.leader in self.roster.members:
            self.roster.leader = snapshot.leader
        self.state = GroupState.STABLE if self.roster.members else GroupState.EMPTY
        self.state_timestamp_ms = snapshot.current_state_timestamp
        self.topics = self._subscribed_topics()

    def start_stable(self, members: Iterable[GroupMember], generation_id: int, now_ms: int) -> None:
        """Begin with members of the consumer protocol type that are already in a generation."""
        assert self.state is GroupState.EMPTY
        for member in members:
            self.roster.add(member)
            self.renew_session(member, now_ms)
        self.generation_id = generation_id
        self.protocol_type = CONSUMER_PROTOCOL_TYPE
        self.protocol_name = self.roster.vote()
        self.topics = self._subscribed_topics()
        self.enter(GroupState.STABLE, now_ms)

    def _subscribed_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        topics: frozenset[str] = frozenset()
        for member in self.roster:
            subscribed = subscribed_topics(member.metadata(self.protocol_name))
            if subscribed is None:
                return None
            topics |= subscribed
        return topics


def check_session_timeout(config: GroupConfig, timeout_ms: int) -> None:
    lowest_ms, highest_ms = config.min_session_timeout_ms, config.max_session_timeout_ms
    if not lowest_ms <= timeout_ms <= highest_ms:
        raise InvalidSessionTimeout(
            f"session.timeout.ms is {timeout_ms}; this broker accepts {lowest_ms} to {highest_ms}"
        )
