"""Copies one topic to another by transactions, exactly once: what it read and what it wrote are committed together.

Whatever goes wrong, it begins anew with InitProducerId, as real ones do, and reads on where its group stands. Every
attempt to copy a record writes another value, so that what was aborted can be told from what was committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tests.simulation.clients import PARTITIONS, TOPIC, Client
from tests.simulation.cluster_clients import COPIES

from headrace.client.cluster import ClientSettings
from headrace.client.errors import raise_for_code
from headrace.client.fetch.consumer import Consumer
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.groups.offsets import committed
from headrace.client.metadata import TopicPartition
from headrace.model.errors import DuplicateSequence, HeadraceError
from headrace.wire.batches.batch import TRANSACTIONAL, BatchRecord, build_batch
from headrace.wire.messages.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.wire.messages.groups import FindCoordinatorRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
)

COPIER = "copier"
TRANSACTION_TIMEOUT_MS = 5_000
STEP_SECONDS = 4.0
SEPARATOR = b"|"


def original(value: bytes) -> bytes:
    """What a copied value is the copy of."""
    return value.rpartition(SEPARATOR)[0]


class TopicCopier(Client):
    """`uses_v2`: by the second generation of the protocol, which adds partitions by itself and bumps the epoch.
    `catches_up`: it copies as much as it can and aborts nothing by its own will."""

    settings = ClientSettings(request_timeout_seconds=3.0, dial_timeout_seconds=2.0, deadline_seconds=STEP_SECONDS)
    uses_v2 = False
    catches_up = False

    async def work(self) -> None:
        self.attempts = 0
        while not self.is_done:
            try:
                await self._copy()
            except HeadraceError:
                await self.think(0.3)

    async def _copy(self) -> None:
        """Transactions until something goes wrong, or another producer has taken over."""
        await self._begin()
        targets = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        stand = await committed(self.cluster, COPIER, targets)
        offsets = {target: stand[target].offset if target in stand else 0 for target in targets}
        async with Consumer(self.cluster, partitions=offsets) as consumer:
            for _ in range(self.random.choice((3, 30))):
                records = await consumer.poll(
                    100 if self.catches_up else self.random.randint(1, 20), timeout_seconds=0.5
                )
                if self.is_done or (records and not await self._transaction(records)):
                    return
                await self.think(0.3)

    async def _begin(self) -> None:
        request = InitProducerIdRequest(transactional_id=COPIER, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        answer = await self._call_coordinator(request, 4)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences = dict.fromkeys(range(PARTITIONS), 0)

    async def _transaction(self, records: Sequence[ConsumedRecord]) -> bool:
        """Whether it was committed, so that another one may follow."""
        self.attempts += 1
        suffix = SEPARATOR + f"{self.name}{self.attempts}".encode()
        values = defaultdict[int, list[bytes]](list)
        ends = dict[int, int]()
        for record in records:
            values[record.partition].append((record.value or b"") + suffix)
            ends[record.partition] = record.offset + 1
        if not self.uses_v2:
            await self._add(list(values))
        for partition, copies in values.items():
            await self._write(partition, copies)
        await self._commit_offsets(ends)
        if self.random.random() < 0.05 and not self.catches_up:
            return False  # left alone: whoever comes next finds it open, or it times out
        is_commit = self.catches_up or self.random.random() < 0.8
        answer = await self._call_coordinator(
            EndTxnRequest(
                transactional_id=COPIER,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                committed=is_commit,
            ),
            5 if self.uses_v2 else 4,
        )
        if not is_commit:
            self.history.aborted.update(value for copies in values.values() for value in copies)
        if self.uses_v2:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences = dict.fromkeys(range(PARTITIONS), 0)
        return is_commit

    async def _add(self, partitions: list[int]) -> None:
        topics = [AddPartitionsToTxnTopic(name=COPIES, partitions=partitions)]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=COPIER,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )

        async def attempt() -> None:
            answer = await self.cluster.call(request, node_id=await self._coordinator(), version_max=3)
            for topic in answer.results_by_topic_v3_and_below:
                for result in topic.results_by_partition:
                    raise_for_code(result.partition_error_code)

        await self.cluster.call_with_retries(attempt)

    async def _write(self, partition: int, values: list[bytes]) -> None:
        batch = build_batch(
            [BatchRecord(value=value, timestamp_ms=self.cluster.clock.now_ms()) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences[partition],
            attributes=TRANSACTIONAL,
        )

        async def attempt() -> None:
            data = PartitionProduceData(index=partition, records=memoryview(bytearray(batch)))
            topics = [TopicProduceData(name=COPIES, partition_data=[data])]
            request = ProduceRequest(transactional_id=COPIER, acks=-1, timeout_ms=3000, topic_data=topics)
            leader = (await self.cluster.partition(COPIES, partition)).leader
            answer = await self.cluster.call(request, node_id=leader, version_max=12 if self.uses_v2 else 11)
            code = answer.responses[0].partition_responses[0].error_code
            if code != DuplicateSequence.code:
                raise_for_code(code)

        await self.cluster.call_with_retries(attempt)
        self.sequences[partition] += len(values)

    async def _commit_offsets(self, ends: dict[int, int]) -> None:
        if not self.uses_v2:
            await self._call_coordinator(
                AddOffsetsToTxnRequest(
                    transactional_id=COPIER,
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    group_id=COPIER,
                ),
                3,
            )
        partitions = [
            TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=end, committed_metadata="")
            for partition, end in ends.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=COPIER,
            group_id=COPIER,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=partitions)],
        )

        async def attempt() -> None:
            answer = await self.cluster.call_coordinator(COPIER, request, version_max=5 if self.uses_v2 else 3)
            for told in answer.topics[0].partitions:
                try:
                    raise_for_code(told.error_code)
                except HeadraceError as error:
                    self.cluster.forget_coordinator_on_error(COPIER, error)
                    raise

        await self.cluster.call_with_retries(attempt)

    async def _call_coordinator(self, request: Any, version: int) -> Any:
        async def attempt() -> Any:
            answer = await self.cluster.call(request, node_id=await self._coordinator(), version_max=version)
            raise_for_code(answer.error_code)
            return answer

        return await self.cluster.call_with_retries(attempt)

    async def _coordinator(self) -> int:
        """Of the transaction; that of a group is known to the client."""
        request = FindCoordinatorRequest(key=COPIER, key_type=1, coordinator_keys=[COPIER])
        answer = await self.cluster.call(request)
        told = answer.coordinators[0] if answer.coordinators else answer
        raise_for_code(told.error_code, told.error_message)
        assert isinstance(told.node_id, int)
        return told.node_id
