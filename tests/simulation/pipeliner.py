"""An idempotent producer with five batches in flight, as third-party clients have.

Headrace's own client has one batch in flight, so this client tests that the broker reassembles a pipeline: after a
broken connection it sends all unacknowledged batches again, in order, while their first copies may still arrive.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from tests.simulation.clients import PARTITIONS, TOPIC, Client

from headrace.client.connections.transport import Transport
from headrace.client.errors import raise_for_code
from headrace.model.errors import DuplicateSequence, HeadraceError
from headrace.testkit.history import SendOperation
from headrace.wire.apis import PRODUCE
from headrace.wire.batches.batch import BatchRecord, build_batch
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from headrace.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

IN_FLIGHT_MAX = 5
VERSION = 12
TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Batch:
    sends: list[SendOperation]
    request: ProduceRequest


class Pipeliner(Client):
    async def work(self) -> None:
        self.partition = self.random.randrange(PARTITIONS)
        self.sequence = 0
        # A partition that does not know the producer accepts any first sequence (KIP-360). If it rejects the first
        # batch and accepts the second, the producer cannot recover, with Kafka either.
        self.in_flight_max = 1
        self.unacknowledged: deque[Batch] = deque()
        self.identity = await self.cluster.call_with_retries(self._identify)
        while self.unacknowledged or not self.is_done:
            try:
                transport = await self._connect()
                await self._pump(transport)
                transport.close()
            except HeadraceError:
                self.cluster.invalidate_metadata()
                await self.think(0.05)

    async def _identify(self) -> InitProducerIdResponse:
        identity: InitProducerIdResponse = await self.cluster.call(InitProducerIdRequest())
        raise_for_code(identity.error_code)
        return identity

    async def _connect(self) -> Transport:
        return await self.cluster.transport((await self.cluster.partition(TOPIC, self.partition)).leader)

    async def _pump(self, transport: Transport) -> None:
        """Keep the pipeline full until an error; the caller then continues with a new connection."""
        calls: deque[asyncio.Task[Any]] = deque()
        unsent = deque(self.unacknowledged)
        try:
            while unsent or calls or not self.is_done:
                while len(calls) < self.in_flight_max and (unsent or not self.is_done):
                    batch = unsent.popleft() if unsent else self._next_batch()
                    request = transport.call(PRODUCE, VERSION, batch.request, TIMEOUT_SECONDS)
                    calls.append(asyncio.create_task(request))
                    await self.think(0.02)
                self._process_response(await calls[0])
                calls.popleft()
                await self.think(0.1)
        finally:
            transport.close()
            for call in calls:
                call.cancel()
            if calls:
                await asyncio.wait(calls)

    def _next_batch(self) -> Batch:
        count = self.random.choice((1, 1, 3))
        values = [f"{self.name}-{self.sequence + index}".encode() for index in range(count)]
        sends = [self.history.begin_send(self.name, self.partition, value) for value in values]
        records = build_batch(
            [BatchRecord(value=value, timestamp_ms=self.cluster.clock.now_ms()) for value in values],
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            base_sequence=self.sequence,
        )
        data = PartitionProduceData(index=self.partition, records=memoryview(records))
        topics = [TopicProduceData(name=TOPIC, partition_data=[data])]
        self.sequence += count
        self.unacknowledged.append(Batch(sends, ProduceRequest(acks=-1, timeout_ms=3000, topic_data=topics)))
        return self.unacknowledged[-1]

    def _process_response(self, response: ProduceResponse) -> None:
        """Process the response to the oldest batch. On any error the batch is sent again."""
        result = response.responses[0].partition_responses[0]
        if result.error_code != DuplicateSequence.code:
            raise_for_code(result.error_code, result.error_message)
        self.in_flight_max = IN_FLIGHT_MAX
        for index, send in enumerate(self.unacknowledged.popleft().sends):
            self.history.end_send(send, result.base_offset + index if result.base_offset >= 0 else -1)
