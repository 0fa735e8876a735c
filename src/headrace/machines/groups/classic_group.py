"""One consumer group of Kafka's classic protocol: members share the partitions of their topics.

The group knows neither partitions nor assignments, those are the clients' matter: it gathers the members,
counts generations, lets one member assign, and keeps those of an earlier generation from doing harm (I18).

Methods take the time and return effects. Requests that may have to wait (`join`, `sync`) come with a token
and are answered by an `Answer` effect, in this call or a later one; the others raise their refusal. `tick`
must be called once `deadline` has come. One caller at a time; nothing in here waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from headrace.machines.groups.group_rebalance import GroupRebalance, JoinProtocol, StoringAssignment, StoringReplacement
from headrace.machines.groups.group_roster import GroupMember
from headrace.machines.groups.group_state import (
    Effect,
    GroupConfig,
    GroupDescription,
    GroupSnapshot,
    GroupState,
    JoinGroupResult,
    JoinRequest,
    LeaveGroupResult,
    LeavingMember,
    MemberDescription,
    OffsetRetention,
    ResponseToken,
    SendResponse,
    SyncGroupResult,
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


class ClassicGroup:
    def __init__(self, group_id: str, config: GroupConfig, now_ms: int) -> None:
        self.group_id = group_id
        self._rebalance = GroupRebalance(config, now_ms)
        self._roster = self._rebalance.roster
        self._join_protocol = JoinProtocol(self._rebalance)

    @classmethod
    def restore(cls, group_id: str, config: GroupConfig, snapshot: GroupSnapshot, now_ms: int) -> ClassicGroup:
        """The group as it was stored: stable again, and every member has a whole session to report."""
        group = cls(group_id, config, now_ms)
        group._rebalance.restore(snapshot, now_ms)
        # The limit was lowered, then the last ones to rejoin are turned away; or the group was to rebalance at once.
        if len(group._roster) > config.max_size or (snapshot.members and snapshot.leader is None):
            group._rebalance.prepare(now_ms)
        return group

    @classmethod
    def of_generation(
        cls, group_id: str, config: GroupConfig, members: Iterable[GroupMember], generation_id: int, now_ms: int
    ) -> ClassicGroup:
        """A stable group of consumers that have a protocol in common, each with a whole session to report."""
        group = cls(group_id, config, now_ms)
        group._rebalance.start_stable(members, generation_id, now_ms)
        return group

    @property
    def state(self) -> GroupState:
        return self._rebalance.state

    @property
    def generation_id(self) -> int:
        return self._rebalance.generation_id

    @property
    def protocol_type(self) -> str | None:
        return self._rebalance.protocol_type

    @property
    def protocol_name(self) -> str | None:
        return self._rebalance.protocol_name

    @property
    def leader(self) -> str | None:
        return self._roster.leader

    @property
    def members(self) -> Iterator[GroupMember]:
        return iter(self._roster)

    @property
    def member_count(self) -> int:
        return len(self._roster)

    @property
    def has_no_members(self) -> bool:
        """Nobody is in it and nobody was told to come back."""
        return self.state is GroupState.EMPTY and not self._roster.pending

    # JoinGroup

    def join(self, token: ResponseToken, request: JoinRequest, now_ms: int) -> list[Effect]:
        """Answered when the generation begins that the member will be in, or at once with an error."""
        assert token is not None
        try:
            self._ensure_alive()
            self._join_protocol.join(token, request, now_ms)
        except MemberIdRequired as refusal:
            self._reject_join(token, refusal, request.new_member_id)
        except GroupMaxSizeReached as refusal:
            self._reject_join(token, refusal, "")
        except HeadraceError as refusal:
            self._reject_join(token, refusal, request.member_id)
        return self._effects()

    # SyncGroup

    def sync(
        self,
        token: ResponseToken,
        member_id: str,
        generation_id: int,
        assignments: Mapping[str, bytes],
        now_ms: int,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> list[Effect]:
        """Answered with the member's assignment once the leader has sent it and it is stored."""
        assert token is not None
        rebalance = self._rebalance
        try:
            member = self._present_member(member_id, instance_id, generation_id)
            self._ensure_same_protocol(protocol_type, protocol_name)
            if self.state is GroupState.PREPARING_REBALANCE:
                raise RebalanceInProgress
        except HeadraceError as refusal:
            rebalance.outbox.append(SendResponse(token, SyncGroupResult(error_code=refusal.code)))
            return self._effects()
        rebalance.renew_session(member, now_ms)
        if self.state is GroupState.STABLE:
            self._roster.unsynced.discard(member_id)
            rebalance.outbox.append(SendResponse(token, rebalance.present_assignment(member)))
        else:
            rebalance.wait_sync(member, token)
            if member_id == self._roster.leader:
                rebalance.store(rebalance.snapshot(assignments), StoringAssignment(generation_id, assignments))
        return self._effects()

    def stored(self, ticket: int, now_ms: int) -> list[Effect]:
        """What `StoreMetadata` asked for is in the log. Of no effect if the group has moved on since."""
        rebalance = self._rebalance
        storing = rebalance.storing.pop(ticket, None)
        if storing is None or storing.generation_id != self.generation_id:
            return []
        if isinstance(storing, StoringAssignment):
            if self.state is GroupState.COMPLETING_REBALANCE:
                rebalance.assign(storing.assignments, 0, now_ms)
                rebalance.enter(GroupState.STABLE, now_ms)
        elif self._is_replacing(storing):
            answer = rebalance.present_generation(storing.member, skip_assignment=storing.skips_assignment)
            if not storing.skips_assignment:
                # Such a client, told that it leads, would assign again; it is not told.
                answer = replace(answer, leader=storing.former_leader, members=())
            rebalance.answer_join(storing.member, answer)
            rebalance.renew_session(storing.member, now_ms)
        return self._effects()

    def store_failed(self, ticket: int, error_code: int, now_ms: int) -> list[Effect]:
        rebalance = self._rebalance
        storing = rebalance.storing.pop(ticket, None)
        if storing is None or storing.generation_id != self.generation_id:
            return []
        if isinstance(storing, StoringAssignment):
            if self.state is GroupState.COMPLETING_REBALANCE:
                rebalance.assign({}, error_code, now_ms)
                rebalance.prepare(now_ms)
        elif self._is_replacing(storing):
            rebalance.refuse(storing.member, error_code, "")
            self._roster.set_protocols(storing.member, storing.replaced_member.protocols)
            replaced_member = self._roster.rename(storing.member, storing.replaced_member.member_id)
            rebalance.renew_session(replaced_member, now_ms)
        return self._effects()

    def _is_replacing(self, storing: StoringReplacement) -> bool:
        # Not if a rebalance has taken the member along, or if yet another process has replaced it.
        return self.state is GroupState.STABLE and storing.member.join_token is storing.token

    # Heartbeat, LeaveGroup, OffsetCommit

    def heartbeat(self, member_id: str, generation_id: int, now_ms: int, *, instance_id: str | None = None) -> None:
        """Keeps the member's session. Raises `RebalanceInProgress` when it has to join again."""
        member = self._present_member(member_id, instance_id, generation_id)
        self._rebalance.renew_session(member, now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgress

    def check_commit(self, member_id: str, generation_id: int, now_ms: int, *, instance_id: str | None = None) -> None:
        """May this caller commit offsets? It keeps its session by it. Raises what OffsetCommit answers."""
        self._ensure_alive()
        if generation_id < 0 and self.state is GroupState.EMPTY:
            return  # An administrator, or a consumer that assigns its partitions by itself.
        if generation_id < 0 and not member_id and instance_id is None:
            raise UnknownMemberId(f"group {self.group_id} has members; only they may commit")
        member = self._present_member(member_id, instance_id, generation_id)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgress
        self._rebalance.renew_session(member, now_ms)

    def leave(self, departures: Sequence[LeavingMember], now_ms: int) -> tuple[list[LeaveGroupResult], list[Effect]]:
        self._ensure_alive()
        departed = []
        members_before = len(self._roster)
        for departure in departures:
            try:
                self._depart(departure)
                error_code = 0
            except HeadraceError as refusal:
                error_code = refusal.code
            departed.append(LeaveGroupResult(departure.member_id, departure.instance_id, error_code))
        if self.state is GroupState.PREPARING_REBALANCE:
            self._rebalance.complete_if_all_joined(now_ms)
        elif len(self._roster) < members_before:
            self._rebalance.prepare(now_ms)
        return departed, self._effects()

    def _depart(self, departure: LeavingMember) -> None:
        if self._roster.pending.pop(departure.member_id, None) is not None:
            return
        # An administrator removes a static member by its instance id alone.
        member = None if departure.member_id else self._roster.static_member(departure.instance_id)
        self._rebalance.reject_waiting(member or self._roster.member(departure.member_id, departure.instance_id))

    # Time

    def deadline(self) -> int | None:
        """When `tick` is due; it may be earlier than needed, never later."""
        return self._rebalance.wake_ms

    def tick(self, now_ms: int) -> list[Effect]:
        rebalance = self._rebalance
        if rebalance.wake_ms is None or now_ms < rebalance.wake_ms:
            return []
        for member_id in [m for m, deadline_ms in self._roster.pending.items() if deadline_ms <= now_ms]:
            del self._roster.pending[member_id]
            self._complete_without_the_lost(now_ms)
        for member in list(self._roster):
            self._expire_session(member, now_ms)
        if rebalance.join_deadline_ms is not None and rebalance.join_deadline_ms <= now_ms:
            rebalance.join_time_is_up(now_ms)
        if rebalance.sync_deadline_ms is not None and rebalance.sync_deadline_ms <= now_ms:
            rebalance.sync_time_is_up(now_ms)
        rebalance.wake_ms = rebalance.earliest_deadline_ms()
        return self._effects()

    def _expire_session(self, member: GroupMember, now_ms: int) -> None:
        due = member.session_deadline_ms is not None and member.session_deadline_ms <= now_ms
        if not due or self._roster.members.get(member.member_id) is not member:
            return
        if member.is_waiting and not member.is_new:
            member.session_deadline_ms = None  # It starts again with the answer that the member waits for.
            return
        self._rebalance.reject_waiting(member)
        if self.state is GroupState.PREPARING_REBALANCE:
            self._complete_without_the_lost(now_ms)
        else:
            self._rebalance.prepare(now_ms)

    def _complete_without_the_lost(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING_REBALANCE and self._roster.all_joined:
            self._rebalance.complete_join(now_ms)

    def rebalance(self, now_ms: int) -> list[Effect]:
        """Ask everybody to join again."""
        self._rebalance.prepare(now_ms)
        return self._effects()

    # Administration

    def describe(self) -> GroupDescription:
        name = self.protocol_name if self.state is GroupState.STABLE else None
        return GroupDescription(
            state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_name=name or "",
            members=tuple(
                MemberDescription(
                    m.member_id, m.instance_id, m.client_id, m.client_host, m.metadata(name), m.assignment
                )
                for m in self._roster
            ),
        )

    def snapshot(self, *, rebalances: bool = False) -> GroupSnapshot:
        """`rebalances`: who restores the group from it must let it rebalance. A stored generation has a leader, unless
        it is not to last."""
        snapshot = self._rebalance.snapshot()
        return replace(snapshot, leader=None) if rebalances else snapshot

    def delete(self, now_ms: int) -> list[Effect]:
        """Raises `GroupNotEmpty`, or `GroupIdNotFound` when it is dead already."""
        self.check_exists()
        if self.state is not GroupState.EMPTY:
            raise GroupNotEmpty(f"group {self.group_id} has members")
        self._rebalance.enter(GroupState.DEAD, now_ms)
        self._rebalance.wake_ms = None
        self._rebalance.store(None)
        return self._effects()

    def close(self, error_code: int, now_ms: int) -> list[Effect]:
        """This broker coordinates the group no longer: everybody who waits is told so, nothing is stored."""
        for member in self._roster:
            self._rebalance.refuse(member, error_code, member.member_id)
        self._rebalance.enter(GroupState.DEAD, now_ms)
        self._rebalance.wake_ms = None
        return self._effects()

    def check_exists(self) -> None:
        if self.state is GroupState.DEAD:
            raise GroupIdNotFound(f"there is no group {self.group_id}")

    def check_offset_delete(self) -> None:
        """May offsets be deleted by hand? Then ask `is_subscribed_to`, topic by topic."""
        self.check_exists()
        if self.state is not GroupState.EMPTY and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise GroupNotEmpty(f"group {self.group_id} has members, and what they subscribe to is not known")

    def is_subscribed_to(self, topic: str) -> bool:
        topics = self._rebalance.topics
        return topic in topics if topics is not None else self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def offset_retention(self) -> OffsetRetention | None:
        """How the group's committed offsets expire; None: not now."""
        rebalance = self._rebalance
        topics = rebalance.topics or frozenset()
        if self.protocol_type is None:
            return OffsetRetention(None, topics)
        if self.state is GroupState.EMPTY:
            since_ms = rebalance.state_timestamp_ms
            return OffsetRetention(since_ms if since_ms >= 0 else None, topics)
        if self.state is GroupState.STABLE and rebalance.topics is not None:
            return OffsetRetention(None, topics)
        return None

    # Checks

    def _ensure_alive(self) -> None:
        if self.state is GroupState.DEAD:
            raise CoordinatorNotAvailable(f"group {self.group_id} is gone from this broker")

    def _present_member(self, member_id: str, instance_id: str | None, generation_id: int) -> GroupMember:
        self._ensure_alive()
        member = self._roster.member(member_id, instance_id)
        if generation_id != self.generation_id:
            raise IllegalGeneration(f"group {self.group_id} is at generation {self.generation_id}")
        return member

    def _ensure_same_protocol(self, protocol_type: str | None, protocol_name: str | None) -> None:
        # Older versions of SyncGroup do not say.
        if protocol_type not in (None, self.protocol_type) or protocol_name not in (None, self.protocol_name):
            raise InconsistentGroupProtocol(f"group {self.group_id} uses {self.protocol_name}")

    def _reject_join(self, token: ResponseToken, refusal: HeadraceError, member_id: str) -> None:
        answer = JoinGroupResult(error_code=refusal.code, member_id=member_id)
        self._rebalance.outbox.append(SendResponse(token, answer))

    def _effects(self) -> list[Effect]:
        effects = self._rebalance.outbox[:]
        self._rebalance.outbox.clear()
        return effects
