"""How a member comes into a group: JoinGroup, for the first time, again, or as a static member's new process.

The part of `groups.Group` that decides about a join; `group_rebalance` then gathers the members. A refusal is
raised, and the caller answers it; otherwise the request waits in its member, or its answer is in the outbox.
"""

from __future__ import annotations

from headrace.machines.groups.group_rebalance import GroupRebalance, StoringReplacement
from headrace.machines.groups.group_roster import GroupMember
from headrace.machines.groups.group_state import GroupConfig, GroupState, JoinRequest, ResponseToken, SendResponse
from headrace.machines.groups.group_topics import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from headrace.model.errors import (
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
)


class JoinProtocol:
    def __init__(self, rebalance: GroupRebalance) -> None:
        self._rebalance = rebalance
        self._roster = rebalance.roster

    def join(self, token: ResponseToken, request: JoinRequest, now_ms: int) -> None:
        check_session_timeout(self._rebalance.config, request.session_timeout_ms)
        self._ensure_room(request, now_ms)
        self._ensure_protocols(request)
        if not request.member_id:
            self._join_without_id(token, request, now_ms)
        elif request.member_id in self._roster.pending and request.instance_id is None:
            self._add(token, request, request.member_id, now_ms)
        else:
            self._rejoin(token, request, now_ms)

    def _join_without_id(self, token: ResponseToken, request: JoinRequest, now_ms: int) -> None:
        replaced_member = self._roster.static_member(request.instance_id)
        if replaced_member is not None:
            self._replace(token, replaced_member, request, now_ms)
        elif request.instance_id is None and request.require_known_member_id:
            # Else a client that loses the answer and asks again would be counted twice.
            self._rebalance.add_pending(request.new_member_id, now_ms + request.session_timeout_ms)
            raise MemberIdRequired(f"join again as {request.new_member_id}")
        else:
            self._add(token, request, request.new_member_id, now_ms)

    def _add(self, token: ResponseToken, request: JoinRequest, member_id: str, now_ms: int) -> None:
        rebalance = self._rebalance
        if not self._roster.members:
            rebalance.protocol_type = request.protocol_type
        if rebalance.state is GroupState.PREPARING_REBALANCE:
            rebalance.member_joined_meanwhile = True
        member = GroupMember.joining(member_id, request)
        self._roster.add(member)
        rebalance.wait_join(member, token)
        # It cannot send heartbeats before it is answered, but a client that has gone must not be waited for.
        rebalance.renew_session(member, now_ms, rebalance.config.new_member_join_timeout_ms)
        rebalance.prepare_or_complete(now_ms)

    def _rejoin(self, token: ResponseToken, request: JoinRequest, now_ms: int) -> None:
        rebalance = self._rebalance
        member = self._roster.member(request.member_id, request.instance_id)
        may_stay = rebalance.state is GroupState.COMPLETING_REBALANCE or (
            # The leader joins again when it has seen a change that asks for another assignment.
            rebalance.state is GroupState.STABLE and member.member_id != self._roster.leader
        )
        if may_stay and member.protocols == request.protocols:
            rebalance.outbox.append(SendResponse(token, rebalance.present_generation(member)))
            return
        self._roster.update(member, request)
        rebalance.wait_join(member, token)
        rebalance.prepare_or_complete(now_ms)

    def _replace(self, token: ResponseToken, replaced_member: GroupMember, request: JoinRequest, now_ms: int) -> None:
        """A static member came back, as a new process; a stable group need not notice."""
        rebalance = self._rebalance
        former_leader = self._roster.leader or ""
        member = rebalance.replace_static(replaced_member, request.new_member_id, now_ms)
        self._roster.update(member, request)
        rebalance.wait_join(member, token)
        if rebalance.state is GroupState.PREPARING_REBALANCE:
            rebalance.complete_if_all_joined(now_ms)
        elif rebalance.state is GroupState.STABLE and self._fits_generation(replaced_member, member):
            storing = StoringReplacement(
                rebalance.generation_id, member, replaced_member, former_leader, token, request.skips_assignment
            )
            rebalance.store(rebalance.snapshot(), storing)
        else:
            rebalance.prepare(now_ms)

    def _fits_generation(self, replaced_member: GroupMember, member: GroupMember) -> bool:
        name = self._rebalance.protocol_name
        if self._roster.vote() != name:
            return False
        if self._rebalance.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return True
        # Not the whole metadata: it names the partitions owned, and would differ after every restart.
        return subscribed_topics(replaced_member.metadata(name)) == subscribed_topics(member.metadata(name))

    def _ensure_room(self, request: JoinRequest, now_ms: int) -> None:
        rebalance, roster = self._rebalance, self._roster
        max_size = rebalance.config.max_size
        known = roster.members.get(request.member_id)
        if not request.member_id:
            known = roster.static_member(request.instance_id)
        if rebalance.state is GroupState.PREPARING_REBALANCE:
            # Those who joined count, not the members: a group that is too large loses the last to rejoin.
            if (known and known.join_token is not None) or roster.joined_count < max_size:
                return
            if known:
                rebalance.reject_waiting(known)
                rebalance.complete_if_all_joined(now_ms)
        elif known or len(roster) < max_size:
            return
        raise GroupMaxSizeReached(f"the group has {max_size} members, the most that it may have")

    def _ensure_protocols(self, request: JoinRequest) -> None:
        rebalance = self._rebalance
        names = {name for name, _ in request.protocols}
        if rebalance.state is GroupState.EMPTY:
            fits = bool(request.protocol_type and names)
        else:
            fits = request.protocol_type == rebalance.protocol_type and self._roster.supports(names)
        if not fits:
            raise InconsistentGroupProtocol(
                f"the group has no protocol in common with {sorted(names)} of type '{request.protocol_type}'"
            )


def check_session_timeout(config: GroupConfig, timeout_ms: int) -> None:
    lowest_ms, highest_ms = config.min_session_timeout_ms, config.max_session_timeout_ms
    if not lowest_ms <= timeout_ms <= highest_ms:
        raise InvalidSessionTimeout(
            f"session.timeout.ms is {timeout_ms}; this broker takes {lowest_ms} to {highest_ms}"
        )
