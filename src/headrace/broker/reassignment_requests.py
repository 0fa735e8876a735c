"""AlterPartitionReassignments and ListPartitionReassignments: begin, end and see moves of partitions.

A move is only begun here. The new replicas copy what there is; when they are in sync, the controller retires the old.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.catalogue import Catalogue, Topic
from headrace.broker.context import RequestContext
from headrace.broker.partition_changes import PartitionChanges, deadline_after
from headrace.machines.reassignment import begin, cancel
from headrace.model.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from headrace.model.names import owner_of
from headrace.model.partition_record import PartitionRecord
from headrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from headrace.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


class ReassignmentRequests:
    def __init__(self, catalogue: Catalogue, changes: PartitionChanges) -> None:
        self._catalogue = catalogue
        self._changes = changes

    async def alter(
        self, request: AlterPartitionReassignmentsRequest, _context: RequestContext
    ) -> AlterPartitionReassignmentsResponse:
        may_resize = request.allow_replication_factor_change
        response = AlterPartitionReassignmentsResponse(allow_replication_factor_change=may_resize)
        deadline = deadline_after(request.timeout_ms)
        for topic in request.topics:
            results = ReassignableTopicResponse(name=topic.name)
            for asked in topic.partitions:
                code, message = await self._alter(topic.name, asked, may_resize, deadline)
                results.partitions.append(
                    ReassignablePartitionResponse(
                        partition_index=asked.partition_index, error_code=code, error_message=message
                    )
                )
            response.responses.append(results)
        return response

    async def list(
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
                _ongoing(index, record)
                for index, record in sorted(topic.places.items())
                if (record.adding or record.removing) and (wanted is None or index in wanted[topic.name])
            ]
            if moving:
                response.topics.append(OngoingTopicReassignment(name=topic.name, partitions=moving))
        return response

    async def _alter(
        self, name: str, asked: ReassignablePartition, may_resize: bool, deadline: float
    ) -> tuple[int, str | None]:
        target = None if asked.replicas is None else tuple(asked.replicas)

        def decide(topic: Topic, record: PartitionRecord) -> PartitionRecord:
            if topic.is_companion:
                raise InvalidReplicaAssignment(
                    f"{name} has the replicas of {owner_of(name)}; reassign that topic instead"
                )
            if target is None:
                return cancel(record)
            changed = begin(record, target)
            self._check_brokers(target, record)
            if not may_resize:
                _check_size(target, record)
            return changed

        return await self._changes.attempt(name, asked.partition_index, decide, deadline)

    def _check_brokers(self, target: Sequence[int], record: PartitionRecord) -> None:
        """A replica may stay on a broker that is down, but none can be made there."""
        live = self._catalogue.standing
        for node_id in target:
            if node_id in record.replicas:
                continue
            broker = live.get(node_id)
            if broker is None:
                raise InvalidReplicaAssignment(f"broker {node_id} is not up, so it cannot get a replica")
            if broker.is_draining:
                raise InvalidReplicaAssignment(f"broker {node_id} is draining, so it cannot get a replica")


def _check_size(target: Sequence[int], record: PartitionRecord) -> None:
    size = len(record.replicas) - len(record.removing)  # where a move under way leads
    if len(target) != size:
        raise InvalidReplicationFactor(
            f"The replication factor would change from {size} to {len(target)}, which the request does not allow."
        )


def _ongoing(index: int, record: PartitionRecord) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=index,
        replicas=list(record.replicas),
        adding_replicas=list(record.adding),
        removing_replicas=list(record.removing),
    )
