"""What goes into a group and what comes out of it: requests, answers, effects, and what is stored of it.

All values, no behaviour. A token stands for one waiting request; whoever runs the machine invents it and
knows whom to answer. Effects are carried out in order. After `StoreMetadata` the runner tells the group that
its ticket was stored, or that storing failed, and gets further effects.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

Token = Hashable
Protocols = tuple[tuple[str, bytes], ...]
"""The assignment protocols that a member knows, its favourite first, each with its metadata for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    member_id: str
    """Empty when the member has none yet."""
    new_member_id: str
    """A fresh one, taken when `member_id` is empty: the group draws no random numbers."""
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    rebalance_timeout_ms: int = -1
    """Negative (JoinGroup v0 has none): the session timeout."""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    require_known_member_id: bool = False
    """JoinGroup v4+: a member without an id is told one and must come again with it."""
    skips_assignment: bool = False
    """JoinGroup v9+: the client understands `skip_assignment`."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    error_code: int = 0
    member_id: str = ""
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    """Everybody, for the leader, who assigns; nobody, for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    error_code: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Departure:
    """Who is to leave: a member by its id, or a static member by its instance id alone."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Departed:
    member_id: str
    instance_id: str | None
    error_code: int


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A generation, as `__consumer_offsets` keeps it."""

    protocol_type: str | None
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    """Since when the group is in its state; -1 when the record is too old to say."""
    members: tuple[MemberSnapshot, ...]


@dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[MemberDescription, ...]


@dataclass(frozen=True, slots=True)
class OffsetRetention:
    """From when on the committed offsets of a group grow old, and which ones never do (KIP-211)."""

    since_ms: int | None
    """When the group became empty; None: each offset from its own commit on."""
    kept_topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Answer:
    token: Token
    answer: JoinAnswer | SyncAnswer


@dataclass(frozen=True, slots=True)
class StoreMetadata:
    ticket: int
    snapshot: GroupSnapshot | None
    """None: a tombstone, the group is gone."""


Effect = Answer | StoreMetadata
