"""DrainBroker: an operator wants a broker to hold nothing, or to take part again. The controller sees to it."""

from __future__ import annotations

from headrace.broker.catalogue import Catalogue
from headrace.broker.context import RequestContext
from headrace.model.errors import HeadraceError, InvalidRequest, PolicyViolation
from headrace.registry.brokers import drain, epoch_key
from headrace.registry.interface import Registry
from headrace.wire.messages.drain_broker import DrainBrokerRequest, DrainBrokerResponse


class DrainRequests:
    def __init__(self, catalogue: Catalogue, registry: Registry) -> None:
        self._catalogue = catalogue
        self._registry = registry

    async def drain(self, request: DrainBrokerRequest, _context: RequestContext) -> DrainBrokerResponse:
        try:
            if request.is_drained:
                await self._check(request.broker_id)
            await drain(self._registry, request.broker_id, is_drained=request.is_drained)
        except HeadraceError as error:
            return DrainBrokerResponse(error_code=error.code, error_message=error.message)
        return DrainBrokerResponse()

    async def _check(self, node_id: int) -> None:
        if await self._registry.get(epoch_key(node_id)) is None:
            raise InvalidRequest(f"broker {node_id} has never been part of this cluster")
        others = sum(not node.is_draining for node in self._catalogue.standing.values() if node.node_id != node_id)
        needed = max(self._replica_counts(node_id), default=0)
        if needed > others:
            raise PolicyViolation(
                f"broker {node_id} has partitions with {needed} replicas, but only {others} other brokers are "
                "available; start another broker first"
            )

    def _replica_counts(self, node_id: int) -> list[int]:
        return [
            len(record.replicas) - len(record.removing)
            for topic in self._catalogue
            for record in topic.places.values()
            if node_id in record.replicas
        ]
