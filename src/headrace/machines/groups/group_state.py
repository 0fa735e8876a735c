"""The states of a classic consumer group, its requests, its responses and its effects.

    Empty --join--> PreparingRebalance --all joined, or time is up--> CompletingRebalance --synced--> Stable
      ^                 |     ^  ^                                           |                          |
      '--nobody left----'     |  '------join, leave, expiry, no sync---------'                          |
                              '---------join of the leader or of somebody new, leave, expiry------------'

Dead is the end of every state: the group was deleted, or another broker coordinates it now.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum

import msgspec


class GroupState(StrEnum):
    """The values are what DescribeGroups and ListGroups say."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupConfig(msgspec.Struct, frozen=True):
    """Kafka's `group.*` settings of a broker, with Kafka's defaults."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    new_member_join_timeout_ms: int = 300_000
    """How long a member that never was in a generation may wait for one; Kafka does not let it be set."""


# What goes into a group and what comes out of it: requests, answers, effects, and what is stored of it.
#
# All values, no behaviour. A token stands for one waiting request; whoever runs the machine invents it and
# knows whom to answer. Effects are carried out in order. After `StoreMetadata` the runner tells the group that
# its ticket was stored, or that storing failed, and gets further effects.


ResponseToken = Hashable
Protocols = tuple[tuple[str, bytes], ...]
"""The assignment protocols that a member knows, its favourite first, each with its metadata for it."""


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
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


class JoinedMember(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinGroupResult(msgspec.Struct, frozen=True, kw_only=True):
    error_code: int = 0
    member_id: str = ""
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    """Everybody, for the leader, who assigns; nobody, for the others."""


class SyncGroupResult(msgspec.Struct, frozen=True, kw_only=True):
    error_code: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeavingMember(msgspec.Struct, frozen=True):
    """Who is to leave: a member by its id, or a static member by its instance id alone."""

    member_id: str
    instance_id: str | None = None


class LeaveGroupResult(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    error_code: int


class MemberSnapshot(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupSnapshot(msgspec.Struct, frozen=True):
    """A generation, as `__consumer_offsets` keeps it."""

    protocol_type: str | None
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    """Since when the group is in its state; -1 when the record is too old to say."""
    members: tuple[MemberSnapshot, ...]


class MemberDescription(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(msgspec.Struct, frozen=True):
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[MemberDescription, ...]


class OffsetRetention(msgspec.Struct, frozen=True):
    """From when on the committed offsets of a group grow old, and which ones never do (KIP-211)."""

    since_ms: int | None
    """When the group became empty; None: each offset from its own commit on."""
    kept_topics: frozenset[str]


class SendResponse(msgspec.Struct, frozen=True):
    token: ResponseToken
    answer: JoinGroupResult | SyncGroupResult


class StoreMetadata(msgspec.Struct, frozen=True):
    ticket: int
    snapshot: GroupSnapshot | None
    """None: a tombstone, the group is gone."""


Effect = SendResponse | StoreMetadata
