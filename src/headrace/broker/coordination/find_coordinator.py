"""FindCoordinator: the broker that coordinates a group or a transactional id.

It is the leader of the partition with the records of the owner. The topic is created on the first request.
"""

from __future__ import annotations

from headrace.broker.coordination.state_log import StateLog
from headrace.broker.handlers import ReportErrors, RequestContext
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    NotCoordinator,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from headrace.model.registry_records import BrokerRecord
from headrace.wire.messages.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_GROUP = 0
_TRANSACTION = 1
_SHARE = 2
_BATCHED_SINCE = 4


class FindCoordinatorHandler:
    def __init__(self, catalogue: Catalogue, offsets_log: StateLog, transactions_log: StateLog) -> None:
        self._catalogue = catalogue
        self._logs = {_GROUP: offsets_log, _TRANSACTION: transactions_log}

    async def handle(self, request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
        if context.version >= _BATCHED_SINCE:
            return FindCoordinatorResponse(
                coordinators=[await self._find(key, request.key_type) for key in request.coordinator_keys]
            )
        found = await self._find(request.key, request.key_type)
        return FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=found.error_message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )

    async def _find(self, key: str, key_type: int) -> Coordinator:
        """An empty group id also has a coordinator: some clients request it before they reject the id themselves."""
        found = Coordinator(key=key, node_id=-1, port=-1)
        with ReportErrors(found):
            if key_type == _SHARE:
                raise UnsupportedVersion(
                    "coordinator type 2 (share groups) is not supported; use 0 (group) or 1 (transaction)"
                )
            if key_type not in self._logs:
                raise InvalidRequest(f"coordinator type {key_type} does not exist")
            node = await self._leader(key, self._logs[key_type])
            found.node_id, found.host, found.port = node.node_id, node.host, node.port
            found.error_message = ""
        return found

    async def _leader(self, key: str, log: StateLog) -> BrokerRecord:
        await log.ensure()
        try:
            node = self._catalogue.leader_node(log.topic, log.partition_index_of(key))
        except (NotCoordinator, UnknownTopicOrPartition):
            node = None  # another broker has just created the topic, and the mirror of this broker does not have it yet
        if node is None:
            raise CoordinatorNotAvailable(f"the partition of {log.topic} for {key} has no leader; retry")
        return node
