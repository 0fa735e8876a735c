"""The state of one partition in the registry: replicas, in-sync replicas and leader. Pure.

The version of the registry key is the partition epoch: every update is conditional on the version that it replaces. A
broker is the leader if and only if the record contains its node id and its current broker epoch. Therefore a restarted
broker does not resume a leadership of its earlier start.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

NO_LEADER = -1
NO_EPOCH = -1

Nodes = tuple[int, ...]


class Leadership(NamedTuple):
    """The leadership of one leader epoch. `broker_epoch` is the number of the leader's start."""

    leader_epoch: int
    node_id: int
    broker_epoch: int


class PartitionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`replicas` is in order of preference. Replicas in `isr` and `elr` have all committed records: those in `elr`
    (eligible leader replicas, KIP-966) left the in-sync replicas while there were too few of them to commit more.
    `adding` and `removing` are the replicas that a reassignment still has to add or remove. `unclean_epoch` is the
    last leader epoch that began with a leader that may have lacked committed records.
    `past` holds the leaderships before the present one, the oldest first."""

    replicas: Nodes
    isr: Nodes
    elr: Nodes = ()
    leader: int = NO_LEADER
    leader_epoch: int = 0
    leader_broker_epoch: int = NO_EPOCH
    adding: Nodes = ()
    removing: Nodes = ()
    unclean_epoch: int = NO_EPOCH
    past: tuple[Leadership, ...] = ()

    @property
    def leaderships(self) -> tuple[Leadership, ...]:
        """Those that are known, the present one too."""
        if self.leader == NO_LEADER:
            return self.past
        return (*self.past, Leadership(self.leader_epoch, self.leader, self.leader_broker_epoch))

    def is_led_by(self, node_id: int, broker_epoch: int) -> bool:
        return self.leader == node_id and self.leader_broker_epoch == broker_epoch
