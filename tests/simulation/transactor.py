"""A transactional producer with both versions of the transaction protocol, and a reader that checks the results.

- A transaction writes one record to each of a few partitions and commits its number as the offset of its own group.
  Then it is committed, aborted or abandoned.
- After any error the producer starts again with InitProducerId. Sometimes a second producer with the same transactional
  id takes over, and batches are sent a second time, later, on another connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.clients import PARTITIONS, Client

from headrace.client.connections.transport import Transport, api_of_request
from headrace.client.errors import raise_for_code
from headrace.model.errors import HeadraceError
from headrace.wire.batches.batch import (
    TRANSACTIONAL,
    BatchHeader,
    BatchRecord,
    build_batch,
    parse_header,
    parse_marker,
    read_records,
)
from headrace.wire.messages.fetch import FetchAbortedTransaction, FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
)

LEDGER = "ledger"
TIMEOUT_SECONDS = 3.0
TRANSACTION_TIMEOUT_MS = 8_000
# Produce versions of transaction protocol 1 and 2.
PRODUCE_V1, PRODUCE_V2 = 11, 12


@dataclass(slots=True)
class TransactionResult:
    """A transaction as its producer knows it. The outcome is None unless the producer got a response."""

    number: int
    values: dict[int, bytes] = field(default_factory=dict)
    outcome: bool | None = None
    wants: bool | None = None  # the outcome that EndTxn requested


class Transactor(Client):
    """`books` is shared by all producers of one transactional id."""

    books: list[TransactionResult]
    uses_v2 = False

    @property
    def transactional_id(self) -> str:
        return self.name.partition("-twin")[0]

    async def work(self) -> None:
        while not self.is_done:
            try:
                transport = await self.cluster.any_transport()
                try:
                    await self._produce(transport)
                finally:
                    transport.close()
            except HeadraceError:
                await self.think(0.3)

    async def _produce(self, transport: Transport) -> None:
        """Run transactions until an error, or until another producer has fenced this one."""
        response = await self._call(
            transport,
            4,
            InitProducerIdRequest(
                transactional_id=self.transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
            ),
        )
        raise_for_code(response.error_code)
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        self.sequences = dict.fromkeys(range(PARTITIONS), 0)
        for _ in range(self.random.choice((1, 5, 30))):
            if self.is_done or not await self._transaction(transport):
                return
            await self.think(0.1)

    async def _transaction(self, transport: Transport) -> bool:
        """Return whether the transaction was ended, so that another one may follow."""
        transaction = TransactionResult(len(self.books) + 1)
        self.books.append(transaction)
        partitions = self.random.sample(range(PARTITIONS), self.random.randint(1, PARTITIONS))
        if not self.uses_v2:
            await self._add_partitions(transport, partitions)
        for partition in partitions:
            transaction.values[partition] = f"{self.transactional_id}:{transaction.number}".encode()
            await self._write(transport, partition, transaction.values[partition])
        await self._commit_offset(transport, transaction.number)
        if self.random.random() < 0.1:
            return False  # abandoned: the next producer ends it, or it times out
        transaction.wants = self.random.random() < 0.7
        response = await self._end(transport, transaction.wants)
        transaction.outcome = transaction.wants
        producer_id = self.producer_id
        if self.uses_v2:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self.sequences = dict.fromkeys(range(PARTITIONS), 0)
        if transaction.outcome:
            await self._check_markers(transport, transaction, producer_id)
        return True

    async def _add_partitions(self, transport: Transport, partitions: list[int]) -> None:
        response = await self._call(
            transport,
            3,
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=LEDGER, partitions=partitions)],
            ),
        )
        for topic in response.results_by_topic_v3_and_below:
            for result in topic.results_by_partition:
                raise_for_code(result.partition_error_code)

    async def _write(self, transport: Transport, partition: int, value: bytes) -> None:
        def request() -> ProduceRequest:
            batch = build_batch(
                [BatchRecord(value=value, timestamp_ms=1)],
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self.sequences[partition],
                attributes=TRANSACTIONAL,
            )
            data = PartitionProduceData(index=partition, records=memoryview(batch))
            topics = [TopicProduceData(name=LEDGER, partition_data=[data])]
            return ProduceRequest(transactional_id=self.transactional_id, acks=-1, timeout_ms=3000, topic_data=topics)

        version = PRODUCE_V2 if self.uses_v2 else PRODUCE_V1
        if self.random.random() < 0.1 and self.uses_v2:
            # The copy arrives late; with version 1 it could join the next transaction, as in Kafka.
            self._late(request(), version)
        response = await self._call(transport, version, request())
        raise_for_code(response.responses[0].partition_responses[0].error_code)
        self.sequences[partition] += 1

    def _late(self, request: ProduceRequest, version: int) -> None:
        async def send() -> None:
            await self.think(3.0)
            with suppress(HeadraceError):
                transport = await self.cluster.any_transport()
                try:
                    await self._call(transport, version, request)
                finally:
                    transport.close()

        self.late.append(asyncio.create_task(send()))

    late: list[asyncio.Task[None]]

    async def _commit_offset(self, transport: Transport, number: int) -> None:
        if not self.uses_v2:
            request = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=self.transactional_id,
            )
            raise_for_code((await self._call(transport, 3, request)).error_code)
        commit = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=LEDGER,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=0, committed_offset=number, committed_metadata=""
                        )
                    ],
                )
            ],
        )
        response = await self._call(transport, 5 if self.uses_v2 else 3, commit)
        raise_for_code(response.topics[0].partitions[0].error_code)

    async def _end(self, transport: Transport, is_commit: bool) -> Any:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=is_commit,
        )
        attempts = self.random.choice((1, 2))
        while True:
            try:
                response = await self._call(transport, 5 if self.uses_v2 else 4, request)
                raise_for_code(response.error_code)
                return response
            except HeadraceError as error:
                attempts -= 1
                if not attempts or not error.retriable or transport.closed:
                    raise
                await self.think(0.05)

    async def _check_markers(self, transport: Transport, transaction: TransactionResult, producer_id: int) -> None:
        """Check that every reader sees the marker of a committed transaction at once. A read_committed reader may not
        see the records yet, because another open transaction may precede them."""
        for partition, value in transaction.values.items():
            is_written = is_marked = False
            async for batch, header, _ in read(transport, partition, isolation_level=0):
                if header.is_control:
                    marker = parse_marker(batch, header)
                    assert marker is not None
                    is_marked = is_marked or (is_written and header.producer_id == producer_id and marker.is_commit)
                else:
                    is_written = is_written or value in [one.value for one in read_records(batch, header, 1 << 20)]
            assert is_marked, f"{value!r} was committed, but a reader right behind it does not find its marker"

    async def _call(self, transport: Transport, version: int, request: Any) -> Any:
        return await transport.call(api_of_request(request).key, version, request, TIMEOUT_SECONDS)


async def read(
    transport: Transport, partition: int, isolation_level: int
) -> AsyncIterator[tuple[memoryview, BatchHeader, list[FetchAbortedTransaction]]]:
    """Yield every batch from the start of the log, with the aborted transactions of its response."""
    offset = 0
    while True:
        requested = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=2_000)
        request = FetchRequest(
            isolation_level=isolation_level, max_bytes=2_000, topics=[FetchTopic(topic=LEDGER, partitions=[requested])]
        )
        response = await transport.call(api_of_request(request).key, 12, request, TIMEOUT_SECONDS)
        raise_for_code(response.error_code)
        data = response.responses[0].partitions[0]
        raise_for_code(data.error_code)
        records = memoryview(bytes(data.records or b""))
        if not records:
            return
        position = 0
        while position < len(records):
            header = parse_header(records, position)
            if header.base_offset >= offset:
                yield records[position : position + header.size_bytes], header, data.aborted_transactions or []
            position += header.size_bytes
        offset = header.next_offset


async def read_committed(transport: Transport, partition: int) -> list[bytes]:
    """Return the values that a read_committed reader sees. Like a client, skip a producer's batches from the first
    offset of its aborted transaction up to the marker."""
    values: list[bytes] = []
    skipped: dict[int, int] = {}
    begun: set[int] = set()
    async for batch, header, aborted in read(transport, partition, isolation_level=1):
        assert [one.first_offset for one in aborted] == sorted(one.first_offset for one in aborted)
        for one in aborted:
            if one.first_offset <= header.last_offset and one.first_offset not in begun:
                begun.add(one.first_offset)
                skipped[one.producer_id] = one.first_offset
        if header.is_control:
            skipped.pop(header.producer_id, None)
        elif not header.is_transactional or header.base_offset < skipped.get(header.producer_id, 1 << 62):
            values += [record.value or b"" for record in read_records(batch, header, 1 << 20)]
    return values
