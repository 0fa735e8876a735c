"""The members of a classic group, the member ids that were handed out but not used yet, and the leader. Pure.

`group_rebalance` makes the decisions.

- There is a leader exactly if there are members, and the leader is one of them.
- The instance id of a static member maps to its current member id.
- `joined_count` is the number of members with a waiting JoinGroup.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from headrace.machines.groups.group_state import JoinRequest, Protocols, ResponseToken
from headrace.model.errors import FencedInstanceId, UnknownMemberId
from headrace.wire.state_records.offsets_records import GroupMemberMetadata


class GroupMember(msgspec.Struct, kw_only=True, eq=False):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """Never was in a generation: it cannot send heartbeats while its first JoinGroup waits."""
    join_token: ResponseToken | None = None
    sync_token: ResponseToken | None = None
    session_deadline_ms: int | None = None
    """None while the member waits for the group and is not expected to send heartbeats."""

    @classmethod
    def joining(cls, member_id: str, request: JoinRequest) -> GroupMember:
        return cls(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=rebalance_timeout_of(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
        )

    @classmethod
    def restored(cls, stored: GroupMemberMetadata, protocol_name: str | None) -> GroupMember:
        return cls(
            member_id=stored.member_id,
            instance_id=stored.group_instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            session_timeout_ms=stored.session_timeout_ms,
            protocols=((protocol_name or "", stored.subscription),),
            assignment=stored.assignment,
        )

    @property
    def is_waiting(self) -> bool:
        return self.join_token is not None or self.sync_token is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")


class GroupRoster:
    def __init__(self) -> None:
        self.members: dict[str, GroupMember] = {}
        self.member_id_of: dict[str, str] = {}
        self.pending: dict[str, int] = {}
        """Member ids that were handed out, and their deadlines for joining."""
        self.unsynced: set[str] = set()
        """Members of this generation that have not sent a SyncGroup."""
        self.leader: str | None = None
        self.joined_count = 0
        self._supporters: dict[str, int] = {}

    def __iter__(self) -> Iterator[GroupMember]:
        return iter(self.members.values())

    def __len__(self) -> int:
        return len(self.members)

    @property
    def all_joined(self) -> bool:
        return self.joined_count == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def member(self, member_id: str, instance_id: str | None) -> GroupMember:
        """Return the member of a request; raise `UnknownMemberId`, or `FencedInstanceId` if it was replaced."""
        if instance_id is not None:
            present = self.member_id_of.get(instance_id)
            if present is not None and present != member_id:
                raise FencedInstanceId(f"instance id {instance_id} belongs to member {present} now, not to {member_id}")
            if present is None:
                raise UnknownMemberId(f"no member of this group has the instance id {instance_id}")
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"{member_id} is not in this group")
        return member

    def static_member(self, instance_id: str | None) -> GroupMember | None:
        return None if instance_id is None else self.members.get(self.member_id_of.get(instance_id, ""))

    def add(self, member: GroupMember) -> None:
        assert member.member_id not in self.members
        self.pending.pop(member.member_id, None)
        self.members[member.member_id] = member
        self._count_protocols(member.protocols, 1)
        if member.instance_id is not None:
            assert member.instance_id not in self.member_id_of
            self.member_id_of[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: GroupMember) -> None:
        """Remove a member without waiting requests: they must be completed first."""
        assert not member.is_waiting
        del self.members[member.member_id]
        self.unsynced.discard(member.member_id)
        self._count_protocols(member.protocols, -1)
        if member.instance_id is not None:
            del self.member_id_of[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: GroupMember, member_id: str) -> GroupMember:
        """A new process took over a static member: the same member with a new id."""
        assert member.instance_id is not None
        assert not member.is_waiting
        renamed = replace(member, member_id=member_id, is_new=False)
        del self.members[member.member_id]
        self.members[member_id] = renamed
        self.member_id_of[member.instance_id] = member_id
        self.unsynced.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = member_id
        return renamed

    def update(self, member: GroupMember, request: JoinRequest) -> None:
        self.set_protocols(member, request.protocols)
        member.rebalance_timeout_ms = rebalance_timeout_of(request)
        member.session_timeout_ms = request.session_timeout_ms

    def set_protocols(self, member: GroupMember, protocols: Protocols) -> None:
        self._count_protocols(member.protocols, -1)
        member.protocols = protocols
        self._count_protocols(protocols, 1)

    def wait_join(self, member: GroupMember, token: ResponseToken) -> ResponseToken | None:
        """Let the member's JoinGroup wait; return the token of a former one, which it replaces."""
        replaced, member.join_token = member.join_token, token
        if replaced is None:
            self.joined_count += 1
        return replaced

    def end_join(self, member: GroupMember) -> ResponseToken | None:
        token, member.join_token = member.join_token, None
        if token is not None:
            self.joined_count -= 1
        return token

    def elect_joined_leader(self) -> bool:
        """Elect a member with a waiting JoinGroup; return False if there is none."""
        if self.leader is not None and self.members[self.leader].join_token is not None:
            return True
        joined = next((member.member_id for member in self if member.join_token is not None), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    def supports(self, names: set[str]) -> bool:
        """Whether all members support one of these protocols."""
        return any(self._supporters.get(name, 0) == len(self.members) for name in names)

    def vote(self) -> str:
        """Each member votes for its preferred protocol among those that all members support."""
        votes: dict[str, int] = {}
        for member in self:
            favourite = next(name for name, _ in member.protocols if self.supports({name}))
            votes[favourite] = votes.get(favourite, 0) + 1
        return max(votes, key=votes.__getitem__)

    def _count_protocols(self, protocols: Protocols, step: int) -> None:
        # A set, because a member that lists a protocol twice must not count twice.
        for name in {name for name, _ in protocols}:
            count = self._supporters.get(name, 0) + step
            if count:
                self._supporters[name] = count
            else:
                del self._supporters[name]


def rebalance_timeout_of(request: JoinRequest) -> int:
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
