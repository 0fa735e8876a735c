"""Two brokers in one world: one leads the topics and coordinates the groups, the other coordinates the transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from tests.unit.broker.simulated_broker import API_OF, SimulatedBroker
from tests.unit.broker.transactions.transaction_support import Transactor

from headrace.broker.cluster.peers import Peers
from headrace.client.errors import Unreachable
from headrace.model.errors import NotLeader
from headrace.model.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.model.registry_records import BrokerRecord
from headrace.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

LEADER, COORDINATOR = 1, 2
COORDINATOR_REQUESTS = (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)


class SeparateCoordinator:
    """Sends each request to the broker that a client would choose.

    `calls` are the requests between the brokers. The response to a request whose type is in `held` is delayed until
    the type is removed; calls to a node in `silent` fail.
    """

    def __init__(self, leader: SimulatedBroker, coordinator: SimulatedBroker) -> None:
        self.leader = leader
        self.coordinator = coordinator
        self.calls: list[Any] = []
        self.held: set[type] = set()
        self.silent: set[int] = set()

    @classmethod
    async def build(cls, leader: SimulatedBroker, patch: pytest.MonkeyPatch) -> SeparateCoordinator:
        coordinator = SimulatedBroker(leader.world)
        coordinator.host = leader.world.host("coordinator")
        coordinator.host.disk.cold_chance = 0.0
        await coordinator.open()
        separate_coordinator = cls(leader, coordinator)
        for simulated_broker in (leader, coordinator):
            await simulated_broker.create_topic("t", 2)
            assert await Transactor(simulated_broker, "first").init() == 0
            await simulated_broker.create_topic(CONSUMER_OFFSETS, 2, cleanup_policy="compact")
        separate_coordinator._separate(patch)
        return separate_coordinator

    async def send(self, request: object, version: int) -> Any:
        return await self.begin_send(request, version)

    def begin_send(self, request: object, version: int) -> asyncio.Task[Any]:
        simulated_broker = self.coordinator if isinstance(request, COORDINATOR_REQUESTS) else self.leader
        return simulated_broker.begin_send(request, version)

    async def release_held(self) -> None:
        """Deliver the responses that were held."""
        self.held.clear()
        await asyncio.sleep(0.1)

    def of_type(self, kind: type) -> list[Any]:
        return [call for call in self.calls if isinstance(call, kind)]

    def _separate(self, patch: pytest.MonkeyPatch) -> None:
        ours = self.leader.broker.catalogue
        for index in range(ours.topic(TRANSACTION_STATE).partition_count):
            self.leader.broker.transactions.end(ours.partition(TRANSACTION_STATE, index))
        theirs = self.coordinator.broker.catalogue
        partition_of = theirs.partition

        def partition(topic: str, index: int) -> Any:
            theirs.partition_record(topic, index)
            if topic != TRANSACTION_STATE:
                raise NotLeader(f"{topic}-{index} has another leader")
            return partition_of(topic, index)

        patch.setattr(theirs, "partition", partition)
        for catalogue in (ours, theirs):
            patch.setattr(catalogue, "leader_node", self._leader_node)
        patch.setattr(Peers, "call", lambda _, *args, **kwargs: self._call(*args, **kwargs))

    def _leader_node(self, topic: str, _index: int) -> BrokerRecord:
        node_id = COORDINATOR if topic == TRANSACTION_STATE else LEADER
        return BrokerRecord(node_id=node_id, epoch=1, host="broker.example", port=9092)

    async def _call(
        self,
        node_id: int,
        request: Any,
        *,
        timeout_seconds: float,
        connection_key: str = "",
        version_max: int | None = None,
    ) -> Any:
        assert timeout_seconds > 0
        assert connection_key
        if node_id in self.silent:
            raise Unreachable(f"broker {node_id} is not live")
        self.calls.append(request)
        versions: Iterable[int | None] = (API_OF[type(request)].max_version, version_max)
        simulated_broker = self.leader if node_id == LEADER else self.coordinator
        response = await simulated_broker.send(request, min(version for version in versions if version is not None))
        while type(request) in self.held:
            await asyncio.sleep(0.01)
        return response
