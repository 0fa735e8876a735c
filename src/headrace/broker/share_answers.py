"""What the answers of ShareFetch and ShareAcknowledge have in common: who is asked, and who leads what is not led here.

Share consumers know few errors; whatever means "ask again" is told as `NotLeader`, after which they do.
"""

from __future__ import annotations

from headrace.broker.catalogue import Catalogue
from headrace.machines.share_sessions import PartitionKey
from headrace.model.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidRequest,
    LeaderNotAvailable,
    NotEnoughReplicas,
    NotLeader,
    OffsetNotAvailable,
    RequestTimedOut,
)
from headrace.model.partition_record import NO_EPOCH, NO_LEADER
from headrace.wire.messages.share_fetch import LeaderIdAndEpoch, NodeEndpoint

_ASK_AGAIN = (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NotEnoughReplicas,
    OffsetNotAvailable,
    RequestTimedOut,
)


def check_member(group_id: str | None, member_id: str | None) -> tuple[str, str]:
    if not group_id:
        raise InvalidRequest("the request has no share group id")
    if not member_id:
        raise InvalidRequest("the request has no member id")
    return group_id, member_id


def as_told(error: HeadraceError) -> HeadraceError:
    return NotLeader(error.message) if isinstance(error, _ASK_AGAIN) else error


class Leaders:
    """For one answer: the leaders of the partitions that others lead, and where these are."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._named: dict[int, NodeEndpoint] = {}

    @property
    def endpoints(self) -> list[NodeEndpoint]:
        return list(self._named.values())

    def of(self, key: PartitionKey, error: HeadraceError | None) -> LeaderIdAndEpoch:
        if not isinstance(error, NotLeader):
            return LeaderIdAndEpoch()
        topic = self._catalogue.find_by_id(key[0])
        place = None if topic is None else topic.places.get(key[1])
        node = None if place is None else self._catalogue.nodes.get(place.leader)
        if place is None or node is None:
            return LeaderIdAndEpoch(NO_LEADER, NO_EPOCH)
        self._named[node.node_id] = NodeEndpoint(node.node_id, node.host, node.port, node.rack)
        return LeaderIdAndEpoch(place.leader, place.leader_epoch)
