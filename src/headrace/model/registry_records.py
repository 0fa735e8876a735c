"""The records of the registry: topics, partitions, live brokers and the controller. Pure.

- A partition record names the replicas, the in-sync replicas and the leader. The version of its registry key is the
  partition epoch: every update is conditional on the version that it replaces.
- A broker is the leader if and only if the record contains its node id and its current broker epoch. Therefore a
  restarted broker does not resume a leadership of its earlier start.
- The topic record is also stored beside the topic's logs on each broker.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

import msgspec


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`configs` contains only overrides, as text, under Kafka's names. `owner` is the id of the topic with which this
    one is co-located; a later topic of the same name as that one has a different id.
    `dead_letters_of` is the id of the topic for which the broker created this one as its dead-letter topic; the two are
    deleted together. It is None if a client created the topic, whatever its name.
    `growths` lists the partition counts before each increase."""

    name: str
    id: UUID
    partitions: int
    configs: dict[str, str] = {}
    created_ms: int
    owner: UUID | None = None
    dead_letters_of: UUID | None = None
    growths: tuple[int, ...] = ()

    def partitions_before(self, index: int) -> int:
        """Return the partition count before this partition was added; 0 if the topic was created with it."""
        return max((count for count in self.growths if count <= index), default=0)


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


class BrokerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A live broker. `epoch` identifies this start of the broker. A draining broker is about to shut down: it leads
    only partitions that no other broker can lead."""

    node_id: int
    epoch: int
    host: str
    port: int
    rack: str | None = None
    is_draining: bool = False


class ControllerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The current controller; `epoch` increases with every election."""

    node_id: int
    epoch: int
