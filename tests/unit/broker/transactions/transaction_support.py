"""A transactional producer of either protocol version, and the contents of the partitions that it writes to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Protocol

from tests.unit.broker.broker_requests import batch, fetch_request, fetched_partitions, only_response, produce_request
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.wire.batches.batch import TRANSACTIONAL, BatchHeader, parse_header, parse_marker, read_records
from headrace.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

ID = "shop"
OLDER, NEWER = 3, 5  # versions of EndTxn


class RequestTarget(Protocol):
    """A broker, or several that share the work."""

    async def send(self, request: object, version: int) -> Any: ...

    def begin_send(self, request: object, version: int) -> asyncio.Task[Any]: ...


class Transactor:
    """One producer. All methods return the error code."""

    def __init__(self, simulated_broker: RequestTarget, transactional_id: str = ID, *, generation: int = NEWER) -> None:
        self.simulated_broker = simulated_broker
        self.transactional_id = transactional_id
        self.generation = generation
        self.producer_id = -1
        self.epoch = -1
        self._sequences: dict[tuple[str, int], int] = {}

    async def init(self, *, claims: bool = False, timeout_ms: int = 60_000, version: int = 4) -> int:
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms)
        if claims:
            request.producer_id, request.producer_epoch = self.producer_id, self.epoch
        response = await self.simulated_broker.send(request, version)
        if response.error_code == 0:
            self._become(response.producer_id, response.producer_epoch)
        return int(response.error_code)

    async def add(self, topic: str, *partitions: int, version: int = 3) -> int:
        response = await self.simulated_broker.send(self.add_request(topic, *partitions), version)
        ((result, *_),) = [topic.results_by_partition for topic in response.results_by_topic_v3_and_below]
        return int(result.partition_error_code)

    def add_request(self, topic: str, *partitions: int) -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[*partitions])],
        )

    async def send(self, value: bytes, topic: str = "t", partition: int = 0) -> int:
        """Add the partition, if that is not left to the broker, and produce one record."""
        if self.generation == OLDER and (code := await self.add(topic, partition)):
            return code
        return await self.produce(value, topic, partition)

    async def produce(self, value: bytes, topic: str = "t", partition: int = 0) -> int:
        sequence = self._sequences.get((topic, partition), 0)
        data = batch(
            value,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        request = produce_request({(topic, partition): data})
        request.transactional_id = self.transactional_id
        code = only_response(
            await self.simulated_broker.send(request, 12 if self.generation == NEWER else 11)
        ).error_code
        if code == 0:
            self._sequences[topic, partition] = sequence + 1
        return code

    async def end(self, *, commit: bool = True) -> int:
        return self.hear(await self.simulated_broker.send(self._end_request(commit), self.generation))

    async def commit(self) -> int:
        return await self.end(commit=True)

    async def abort(self) -> int:
        return await self.end(commit=False)

    def begin_end(self, *, commit: bool = True) -> asyncio.Task[Any]:
        return self.simulated_broker.begin_send(self._end_request(commit), self.generation)

    def _end_request(self, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

    def hear(self, response: Any) -> int:
        if response.error_code == 0 and self.generation == NEWER:
            self._become(response.producer_id, response.producer_epoch)
        return int(response.error_code)

    def _become(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        self._sequences.clear()


class PartitionContents(NamedTuple):
    """What a partition holds, by its fate."""

    committed: list[bytes]
    aborted: list[bytes]
    open: list[bytes]
    markers: int


async def partition_contents(
    simulated_broker: RequestTarget, topic: str = "t", partition: int = 0
) -> PartitionContents:
    found = PartitionContents([], [], [], 0)
    waiting: dict[int, list[bytes]] = {}
    async for part, header in _batches(simulated_broker, topic, partition):
        if header.is_control:
            marker = parse_marker(part, header)
            assert marker is not None
            (found.committed if marker.is_commit else found.aborted).extend(waiting.pop(header.producer_id, []))
            found = found._replace(markers=found.markers + 1)
        else:
            values = [bytes(record.value or b"") for record in read_records(part, header, 1 << 20)]
            waiting.setdefault(header.producer_id, []).extend(values)
    return found._replace(open=[value for values in waiting.values() for value in values])


async def _batches(
    simulated_broker: RequestTarget, topic: str, partition: int
) -> AsyncIterator[tuple[memoryview, BatchHeader]]:
    """Fetch all committed records, with as many requests as needed."""
    offset, high_watermark = 0, 1
    while offset < high_watermark:
        data = fetched_partitions(await simulated_broker.send(fetch_request({(topic, partition): offset}), 11))[
            topic, partition
        ]
        assert data.error_code == 0, data
        high_watermark = data.high_watermark
        view = memoryview(data.records or b"")
        assert view or offset >= high_watermark
        while view:
            header = parse_header(view)
            yield view[: header.size_bytes], header
            view = view[header.size_bytes :]
            offset = header.base_offset + header.last_offset_delta + 1


async def state(simulated_broker: RequestTarget, transactional_id: str = ID) -> str:
    return str((await described(simulated_broker, transactional_id)).transaction_state)


async def described(simulated_broker: RequestTarget, transactional_id: str = ID) -> Any:
    response = await simulated_broker.send(DescribeTransactionsRequest(transactional_ids=[transactional_id]), 0)
    (answer,) = response.transaction_states
    return answer


async def restarted(simulated_broker: SimulatedBroker) -> None:
    """Started again, and everything read that there is to be read."""
    await simulated_broker.open()
    await simulated_broker.pass_time(1)
