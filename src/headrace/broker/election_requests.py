"""ElectLeaders: an administrator wants the preferred replicas to lead, or, with loss, one that is not in sync."""

from __future__ import annotations

import logging

from headrace.broker.catalogue import Catalogue, Topic
from headrace.broker.context import RequestContext
from headrace.broker.partition_changes import Decide, PartitionChanges, deadline_after
from headrace.machines.leadership import elect_unclean, prefer
from headrace.model.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    HeadraceError,
    InvalidRequest,
    PreferredLeaderNotAvailable,
)
from headrace.model.names import owner_of
from headrace.model.partition_record import PartitionRecord
from headrace.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

log = logging.getLogger(__name__)

_PREFERRED = 0
_UNCLEAN = 1


class ElectionRequests:
    def __init__(self, catalogue: Catalogue, changes: PartitionChanges) -> None:
        self._catalogue = catalogue
        self._changes = changes

    async def elect(self, request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
        if request.election_type not in (_PREFERRED, _UNCLEAN):
            return ElectLeadersResponse(error_code=InvalidRequest.code)
        decide = self._prefer if request.election_type == _PREFERRED else self._elect_unclean
        asked = request.topic_partitions
        if asked is None:
            asked = self._all_but_settled(decide)
        if request.election_type == _UNCLEAN:
            log.warning(
                "unclean elections requested peer=%s client_id=%s partitions=%s",
                context.client_host,
                context.client_id,
                asked,
            )
        deadline = deadline_after(request.timeout_ms)
        response = ElectLeadersResponse()
        for named in asked:
            results = []
            for index in named.partitions:
                code, message = await self._changes.attempt(named.topic, index, decide, deadline)
                if code == ElectionNotNeeded.code and request.topic_partitions is None:
                    continue
                results.append(PartitionResult(partition_id=index, error_code=code, error_message=message))
            if results:
                response.replica_election_results.append(
                    ReplicaElectionResult(topic=named.topic, partition_result=results)
                )
        return response

    def _all_but_settled(self, decide: Decide) -> list[TopicPartitions]:
        """Who asks for all does not want to hear of those that are well as they are, and most are."""
        return [
            TopicPartitions(
                topic=topic.name,
                partitions=[i for i, record in sorted(topic.places.items()) if _is_due(topic, record, decide)],
            )
            for topic in self._catalogue
        ]

    def _prefer(self, topic: Topic, record: PartitionRecord) -> PartitionRecord:
        if topic.is_companion:
            raise ElectionNotNeeded(
                f"the leader is always that of {owner_of(topic.name)}; elect a leader of that topic"
            )
        preferred = record.replicas[0]
        live = self._catalogue.standing
        if preferred in live and record.is_led_by(preferred, live[preferred].epoch):
            raise ElectionNotNeeded(f"broker {preferred} is already the leader")
        elected = prefer(record, live, min(topic.config.min_insync_replicas, len(record.replicas)))
        if elected is None:
            raise PreferredLeaderNotAvailable(
                f"broker {preferred} cannot become the leader: it is down, draining, or not in sync"
            )
        return elected

    def _elect_unclean(self, topic: Topic, record: PartitionRecord) -> PartitionRecord:
        elected = elect_unclean(record, self._catalogue.standing)
        if elected is None:
            raise EligibleLeadersNotAvailable(
                f"none of the replicas {list(record.replicas)} of {topic.name} is available"
            )
        return elected


def _is_due(topic: Topic, record: PartitionRecord, decide: Decide) -> bool:
    try:
        decide(topic, record)
    except ElectionNotNeeded:
        return False
    except HeadraceError:
        return True  # the attempt will tell why it cannot be
    return True
