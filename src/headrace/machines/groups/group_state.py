"""The states of a classic consumer group, its requests, its responses and its effects. Pure.

    Empty --join--> PreparingRebalance --all joined, or timeout--> CompletingRebalance --synced--> Stable
      ^                 |     ^  ^                                        |                          |
      '--no members-----'     |  '------join, leave, expiry, no sync------'                          |
                              '---------leader rejoins, new member, leave, expiry--------------------'

Dead is the final state: the group was deleted, or another broker is its coordinator.

Effects are executed in order. After `StoreMetadata` the caller reports that the ticket was stored, or that storing
failed, and gets further effects. A token identifies one waiting request; the caller creates it and completes the
request.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import StrEnum

import msgspec

from headrace.wire.messages.groups import JoinGroupResponse, SyncGroupResponse
from headrace.wire.state_records.offsets_records import GroupMetadataValue


class GroupState(StrEnum):
    """The values appear in DescribeGroups and ListGroups."""

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
    """How long a new member may wait for its first generation; not configurable in Kafka."""


ResponseToken = Hashable
Protocols = tuple[tuple[str, bytes], ...]
"""The assignment protocols that a member supports, the preferred one first, each with the member's metadata for it."""


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    """Empty if the member has no id yet."""
    new_member_id: str
    """A new id, used if `member_id` is empty: the group itself uses no randomness."""
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    rebalance_timeout_ms: int = -1
    """Negative (JoinGroup v0 does not have it): the session timeout applies."""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    require_known_member_id: bool = False
    """JoinGroup v4+: a member without an id gets one, and must join again with it."""
    skips_assignment: bool = False
    """JoinGroup v9+: the client supports `skip_assignment`."""


class SyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    generation_id: int
    assignments: Mapping[str, bytes] = msgspec.field(default_factory=dict)
    """By member id; only from the leader."""
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    """None: older versions of SyncGroup have neither type nor name."""


class LeavingMember(msgspec.Struct, frozen=True):
    """A member to remove: by its id, or a static member by its instance id alone."""

    member_id: str
    instance_id: str | None = None


class OffsetRetention(msgspec.Struct, frozen=True):
    """From when on the committed offsets of a group age, and which ones never expire (KIP-211)."""

    since_ms: int | None
    """When the group became empty; None: each offset ages from its own commit on."""
    kept_topics: frozenset[str]


class SendResponse(msgspec.Struct, frozen=True):
    token: ResponseToken
    result: JoinGroupResponse | SyncGroupResponse


class StoreMetadata(msgspec.Struct, frozen=True):
    ticket: int
    snapshot: GroupMetadataValue | None
    """None: a tombstone, because the group was deleted."""


Effect = SendResponse | StoreMetadata


def failed_join(error_code: int, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error_code, member_id=member_id, protocol_name=None)
