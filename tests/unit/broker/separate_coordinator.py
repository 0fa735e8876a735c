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
TO_THE_COORDINATOR = (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)


class SeparateCoordinator:
    """Clients ask it, and it asks the broker that they would ask. `calls` are the requests from broker to broker;
    those of a type in `held` are not answered until it is taken out, those to a node in `silent` not at all."""

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
            await simulated_broker.make_topic("t", 2)
            assert await Transactor(simulated_broker, "first of all").init() == 0
            await simulated_broker.make_topic(CONSUMER_OFFSETS, 2, cleanup_policy="compact")
        separate_coordinator._separate(patch)
        return separate_coordinator

    async def ask(self, request: object, version: int) -> Any:
        return await self.begin(request, version)

    def begin(self, request: object, version: int) -> asyncio.Task[Any]:
        simulated_broker = self.coordinator if isinstance(request, TO_THE_COORDINATOR) else self.leader
        return simulated_broker.begin(request, version)

    async def let_go(self) -> None:
        """What was held goes on."""
        self.held.clear()
        await asyncio.sleep(0.1)

    def of_type(self, kind: type) -> list[Any]:
        return [call for call in self.calls if isinstance(call, kind)]

    def _separate(self, patch: pytest.MonkeyPatch) -> None:
        ours = self.leader.broker.catalogue
        for index in range(ours.topic(TRANSACTION_STATE).partition_count):
            self.leader.broker.transactions.end(ours.partition(TRANSACTION_STATE, index))
        theirs = self.coordinator.broker.catalogue
        led_here = theirs.partition

        def partition(topic: str, index: int) -> Any:
            theirs.partition_record(topic, index)
            if topic != TRANSACTION_STATE:
                raise NotLeader(f"{topic}-{index} is led elsewhere")
            return led_here(topic, index)

        patch.setattr(theirs, "partition", partition)
        for catalogue in (ours, theirs):
            patch.setattr(catalogue, "leader_node", self._leader_node)
        patch.setattr(Peers, "call", lambda _, *args, **kwargs: self._call(*args, **kwargs))

    def _leader_node(self, topic: str, _index: int) -> BrokerRecord:
        node_id = COORDINATOR if topic == TRANSACTION_STATE else LEADER
        return BrokerRecord(node_id=node_id, epoch=1, host="somewhere", port=9092)

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
        answer = await simulated_broker.ask(request, min(version for version in versions if version is not None))
        while type(request) in self.held:
            await asyncio.sleep(0.01)
        return answer
