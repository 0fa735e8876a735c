"""Requests to other brokers of the cluster, by the Kafka protocol.

A call is a single attempt. A broker responds to the requests of one connection in order, so requests that may wait for
long use a connection of their own (`connection_key`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.model.errors import RequestTimedOut
from headrace.runtime.inline_start import switch_to_task
from headrace.runtime.network import Network
from headrace.wire.messages.fetch import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from headrace.client.connections.transport import TransportPool

_DIAL_SECONDS = 5.0
_EARLIEST_LOCAL = -4


class Peers:
    def __init__(self, network: Network, node_id: int, address_of: Callable[[int], tuple[str, int] | None]) -> None:
        self._network = network
        self._node_id = node_id
        self._address_of = address_of
        self._transports: TransportPool | None = None

    async def call(
        self,
        node_id: int,
        request: Any,
        *,
        timeout_seconds: float,
        connection_key: str = "",
        version_max: int | None = None,
    ) -> Any:
        """Send one request to another broker and return the response, whose error codes are not checked. The timeout
        applies to connecting and to the response separately."""
        # Imported here to keep startup fast: a single broker never needs it.
        from headrace.client.connections.address import Address
        from headrace.client.connections.tcp import TcpDialer
        from headrace.client.connections.transport import TransportPool, api_of_request, choose_version
        from headrace.client.errors import Unreachable

        await switch_to_task()
        address = self._address_of(node_id)
        if address is None:
            raise Unreachable(f"broker {node_id} is not live")
        if self._transports is None:
            self._transports = TransportPool(
                TcpDialer(self._network, f"headrace-broker-{self._node_id}"), _DIAL_SECONDS
            )
        try:
            async with asyncio.timeout(timeout_seconds):
                transport = await self._transports.get_or_dial(Address(*address), connection_key)
        except TimeoutError:
            raise RequestTimedOut(f"broker {node_id} did not respond within {timeout_seconds:g} s") from None
        api = api_of_request(request)
        version = choose_version(transport, api, version_max)
        return await transport.call(api.key, version, request, timeout_seconds)

    async def log_start_offsets(
        self, node_id: int, topic: str, leader_epochs: Mapping[int, int], timeout_seconds: float
    ) -> list[ListOffsetsPartitionResponse]:
        """Return the log start offsets of partitions, given with their leader epochs (-1: any), or the errors of those
        that the broker does not lead."""
        requested = [
            ListOffsetsPartition(partition_index=index, current_leader_epoch=epoch, timestamp=_EARLIEST_LOCAL)
            for index, epoch in leader_epochs.items()
        ]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=requested)])
        response: ListOffsetsResponse = await self.call(node_id, request, timeout_seconds=timeout_seconds)
        return [result for found in response.topics for result in found.partitions]

    def close(self) -> None:
        """Close all connections; calls in progress raise ConnectionLost."""
        if self._transports is not None:
            self._transports.close()
