"""One partition as the registry keeps it: who holds it, who has everything, and who leads. Pure.

The key's version is the partition's epoch: whoever changes the record names the version that it replaces. A broker
leads exactly when the record names its node id and the epoch of its present start, so a broker that was restarted is
never taken for the leader that it was before.
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
    """`replicas` in the order of preference. `isr` have everything that is committed, `elr` too, though they are
    behind: they left while there were too few to commit more. `adding` and `removing` are the rest of a reassignment.
    `unclean_epoch`: the last leader epoch that began with a leader that may have lacked committed records. `past` are
    the last leaderships before the present one, the oldest first."""

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
