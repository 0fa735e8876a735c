"""Requests of administrators that move replicas and leadership: AlterPartitionReassignments, ElectLeaders, DrainBroker.

- Any broker carries out a change, by compare-and-set of the partition record. Its knowledge of other brokers may be
  outdated: that can make a change useless but never unsafe, because the decision is based on the record that it
  replaces.
- A reassignment only begins here. The new replicas fetch the log; when they are in sync, the controller removes the old
  ones. Likewise, DrainBroker only marks the broker, and the controller moves the replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from headrace.broker.handlers import ReportErrors, RequestContext
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.controller.leadership import elect_preferred, elect_unclean
from headrace.machines.controller.reassignment import begin_reassignment, cancel_reassignment
from headrace.model.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    HeadraceError,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    PolicyViolation,
    PreferredLeaderNotAvailable,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from headrace.model.names import owner_of
from headrace.model.registry_records import PartitionRecord
from headrace.registry.brokers import drain, epoch_key
from headrace.registry.interface import Registry
from headrace.registry.topics import change_partition, partition_key
from headrace.runtime.inline_start import switch_to_task
from headrace.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DrainBrokerRequest,
    DrainBrokerResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PartitionResult,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)

log = logging.getLogger(__name__)

_PREFERRED = 0
_UNCLEAN = 1

DecideChange = Callable[[Topic, PartitionRecord], PartitionRecord | None]
"""Return the new record, or None if no change is needed, or raise."""


class PartitionRequests:
    def __init__(self, catalogue: Catalogue, registry: Registry) -> None:
        self._catalogue = catalogue
        self._registry = registry

    # Reassignments

    async def alter_reassignments(
        self, request: AlterPartitionReassignmentsRequest, _context: RequestContext
    ) -> AlterPartitionReassignmentsResponse:
        may_resize = request.allow_replication_factor_change
        response = AlterPartitionReassignmentsResponse(allow_replication_factor_change=may_resize)
        deadline = _deadline_after(request.timeout_ms)
        for topic in request.topics:
            results = ReassignableTopicResponse(name=topic.name)
            for requested in topic.partitions:
                result = ReassignablePartitionResponse(partition_index=requested.partition_index)
                with ReportErrors(result):
                    await self._reassign(topic.name, requested, may_resize, deadline)
                results.partitions.append(result)
            response.responses.append(results)
        return response

    async def list_reassignments(
        self, request: ListPartitionReassignmentsRequest, _context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        wanted = (
            None if request.topics is None else {topic.name: {*topic.partition_indexes} for topic in request.topics}
        )
        response = ListPartitionReassignmentsResponse()
        for topic in self._catalogue:
            if wanted is not None and topic.name not in wanted:
                continue
            moving = [
                OngoingPartitionReassignment(index, [*record.replicas], [*record.adding], [*record.removing])
                for index, record in sorted(topic.partition_records.items())
                if (record.adding or record.removing) and (wanted is None or index in wanted[topic.name])
            ]
            if moving:
                response.topics.append(OngoingTopicReassignment(name=topic.name, partitions=moving))
        return response

    async def _reassign(self, name: str, requested: ReassignablePartition, may_resize: bool, deadline: float) -> None:
        target = None if requested.replicas is None else tuple(requested.replicas)

        def decide(topic: Topic, record: PartitionRecord) -> PartitionRecord:
            if topic.is_colocated:
                raise InvalidReplicaAssignment(
                    f"{name} has the replicas of {owner_of(name)}; reassign that topic instead"
                )
            if target is None:
                return cancel_reassignment(record)
            changed = begin_reassignment(record, target)
            self._check_brokers(target, record)
            size = len(record.replicas) - len(record.removing)  # of the target, if a reassignment is in progress
            if len(target) != size and not may_resize:
                raise InvalidReplicationFactor(
                    f"The replication factor would change from {size} to {len(target)}, which the request does not "
                    "allow."
                )
            return changed

        await self._change(name, requested.partition_index, decide, deadline)

    def _check_brokers(self, target: Sequence[int], record: PartitionRecord) -> None:
        """Raise unless all brokers that get a new replica are live. A replica may stay on a broker that is down."""
        live = self._catalogue.live_brokers
        for node_id in target:
            if node_id in record.replicas:
                continue
            broker = live.get(node_id)
            if broker is None:
                raise InvalidReplicaAssignment(f"broker {node_id} is not up, so it cannot get a replica")
            if broker.is_draining:
                raise InvalidReplicaAssignment(f"broker {node_id} is draining, so it cannot get a replica")

    # Elections

    async def elect_leaders(self, request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
        if request.election_type not in (_PREFERRED, _UNCLEAN):
            raise InvalidRequest(
                f"election type {request.election_type} does not exist; use 0 (preferred) or 1 (unclean)"
            )
        decide = self._prefer if request.election_type == _PREFERRED else self._elect_unclean
        requested = request.topic_partitions
        if requested is None:
            requested = self._partitions_to_elect(decide)
        if request.election_type == _UNCLEAN:
            log.warning(
                "unclean elections requested peer=%s client_id=%s partitions=%s",
                context.client_host,
                context.client_id,
                requested,
            )
        deadline = _deadline_after(request.timeout_ms)
        response = ElectLeadersResponse()
        for named in requested:
            results = []
            for index in named.partitions:
                result = PartitionResult(partition_id=index)
                with ReportErrors(result):
                    await self._change(named.topic, index, decide, deadline)
                if result.error_code != ElectionNotNeeded.code or request.topic_partitions is not None:
                    results.append(result)
            if results:
                response.replica_election_results.append(
                    ReplicaElectionResult(topic=named.topic, partition_result=results)
                )
        return response

    def _partitions_to_elect(self, decide: DecideChange) -> list[ElectLeadersTopic]:
        """Return the partitions that need an election: a request for all partitions omits the others from the
        response."""
        return [
            ElectLeadersTopic(
                topic=topic.name,
                partitions=[
                    i for i, record in sorted(topic.partition_records.items()) if _needs_election(topic, record, decide)
                ],
            )
            for topic in self._catalogue
        ]

    def _prefer(self, topic: Topic, record: PartitionRecord) -> PartitionRecord:
        if topic.is_colocated:
            raise ElectionNotNeeded(
                f"the leader is always that of {owner_of(topic.name)}; elect a leader of that topic"
            )
        preferred = record.replicas[0]
        live = self._catalogue.live_brokers
        if preferred in live and record.is_led_by(preferred, live[preferred].epoch):
            raise ElectionNotNeeded(f"broker {preferred} is already the leader")
        elected = elect_preferred(record, live, topic.config.min_insync_replicas)
        if elected is None:
            raise PreferredLeaderNotAvailable(
                f"broker {preferred} cannot become the leader: it is down, draining, or not in sync"
            )
        return elected

    def _elect_unclean(self, topic: Topic, record: PartitionRecord) -> PartitionRecord:
        elected = elect_unclean(record, self._catalogue.live_brokers)
        if elected is None:
            raise EligibleLeadersNotAvailable(
                f"none of the replicas {list(record.replicas)} of {topic.name} is available"
            )
        return elected

    # Draining

    async def drain(self, request: DrainBrokerRequest, _context: RequestContext) -> DrainBrokerResponse:
        if request.is_drained:
            await self._check_drain(request.broker_id, request.reduces_replicas)
        await drain(self._registry, request.broker_id, is_drained=request.is_drained)
        return DrainBrokerResponse()

    async def _check_drain(self, node_id: int, reduces_replicas: bool) -> None:
        if await self._registry.get(epoch_key(node_id)) is None:
            raise InvalidRequest(f"broker {node_id} has never been part of this cluster")
        others = sum(not node.is_draining for node in self._catalogue.live_brokers.values() if node.node_id != node_id)
        needed = max(
            (
                len(record.replicas) - len(record.removing)
                for topic in self._catalogue
                if not topic.is_colocated  # it follows its owner
                for record in topic.partition_records.values()
                if node_id in record.replicas
            ),
            default=0,
        )
        if needed <= others or (reduces_replicas and others):
            return
        reduce = f", or reduce the replicas with `headrace cluster drain {node_id} --reduce-replicas`" if others else ""
        raise PolicyViolation(
            f"broker {node_id} has partitions with {needed} replicas, but only {others} other brokers are "
            f"available; start another broker first{reduce}"
        )

    # Changes

    async def _change(self, name: str, index: int, decide: DecideChange, deadline: float) -> None:
        """Change one partition. Raise `RequestTimedOut` at the event loop's time `deadline`."""
        await switch_to_task()
        topic, seen = self._catalogue.topic(name), False

        def decided(record: PartitionRecord) -> PartitionRecord | None:
            nonlocal seen
            seen = True
            changed = decide(topic, record)
            return None if changed == record else changed

        changed = None
        try:
            async with asyncio.timeout_at(deadline):
                if 0 <= index < topic.partition_count:
                    changed = await change_partition(self._registry, topic.id, index, decided)
                if not seen:  # or the topic was deleted meanwhile
                    raise UnknownTopicOrPartition(f"partition {name}-{index} does not exist")
                if changed is not None:
                    # A later request to this broker must find the changed record.
                    await self._catalogue.mirror.read([partition_key(topic.id, index)])
        except TimeoutError:
            raise RequestTimedOut from None


def _needs_election(topic: Topic, record: PartitionRecord, decide: DecideChange) -> bool:
    try:
        decide(topic, record)
    except ElectionNotNeeded:
        return False
    except HeadraceError:
        return True  # the attempt will report the error
    return True


def _deadline_after(timeout_ms: int) -> float:
    return asyncio.get_running_loop().time() + max(timeout_ms, 0) / 1000
