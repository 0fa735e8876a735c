"""An idempotent producer as foreign clients are: five batches in flight, all sent again after a failure.

Our own client has one batch in flight, so this is what shows whether the broker puts a pipeline back together: after a
broken connection all that was not acknowledged is sent again, in order, while first copies may still be under way.
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
        # A partition that does not know the producer takes any sequence for its first (KIP-360), so if the first batch
        # is refused and the next one not, there is no way back, with Kafka as with us.
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
        """Keep the pipeline full until something goes wrong; then the caller begins anew, with a new connection."""
        calls: deque[asyncio.Task[Any]] = deque()
        unsent = deque(self.unacknowledged)
        try:
            while unsent or calls or not self.is_done:
                while len(calls) < self.in_flight_max and (unsent or not self.is_done):
                    batch = unsent.popleft() if unsent else self._next_batch()
                    request = transport.call(PRODUCE, VERSION, batch.request, TIMEOUT_SECONDS)
                    calls.append(asyncio.create_task(request))
                    await self.think(0.02)
                self._settle(await calls[0])
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

    def _settle(self, response: ProduceResponse) -> None:
        """The answer to the oldest batch. Whatever is wrong with it, the batch is sent again."""
        answer = response.responses[0].partition_responses[0]
        if answer.error_code != DuplicateSequence.code:
            raise_for_code(answer.error_code, answer.error_message)
        self.in_flight_max = IN_FLIGHT_MAX
        for index, send in enumerate(self.unacknowledged.popleft().sends):
            self.history.end_send(send, answer.base_offset + index if answer.base_offset >= 0 else -1)
