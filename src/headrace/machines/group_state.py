"""The states of a classic consumer group, and the limits that a broker sets to its groups.

    Empty --join--> PreparingRebalance --all joined, or time is up--> CompletingRebalance --synced--> Stable
      ^                 |     ^  ^                                           |                          |
      '--nobody left----'     |  '------join, leave, expiry, no sync---------'                          |
                              '---------join of the leader or of somebody new, leave, expiry------------'

Dead is the end of every state: the group was deleted, or another broker coordinates it now.
"""

from __future__ import annotations

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
