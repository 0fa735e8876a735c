"""A client that copies one topic to another exactly once, in transactions that include its input offsets.

After any error it starts again with InitProducerId and continues at its group's committed offset. Every attempt to copy
a record writes another value, which shows whether a committed or an aborted attempt is in the log.
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
    """Return the value of which this is a copy."""
    return value.rpartition(SEPARATOR)[0]


class TopicCopier(Client):
    """`uses_v2`: with version 2 of the transaction protocol, which adds partitions implicitly and bumps the epoch.
    `catches_up`: copy as fast as possible and abort nothing on purpose."""

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
        """Run transactions until an error, or until another producer has fenced this one."""
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
        response = await self._call_coordinator(request, 4)
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        self.sequences = dict.fromkeys(range(PARTITIONS), 0)

    async def _transaction(self, records: Sequence[ConsumedRecord]) -> bool:
        """Return whether the transaction was committed, so that another one may follow."""
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
            return False  # abandoned: the next producer ends it, or it times out
        is_commit = self.catches_up or self.random.random() < 0.8
        response = await self._call_coordinator(
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
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
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
            response = await self.cluster.call(request, node_id=await self._coordinator(), version_max=3)
            for topic in response.results_by_topic_v3_and_below:
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
            response = await self.cluster.call(request, node_id=leader, version_max=12 if self.uses_v2 else 11)
            code = response.responses[0].partition_responses[0].error_code
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
            response = await self.cluster.call_coordinator(COPIER, request, version_max=5 if self.uses_v2 else 3)
            for partition in response.topics[0].partitions:
                self.cluster.raise_for_coordinator(COPIER, partition.error_code)

        await self.cluster.call_with_retries(attempt)

    async def _call_coordinator(self, request: Any, version: int) -> Any:
        async def attempt() -> Any:
            response = await self.cluster.call(request, node_id=await self._coordinator(), version_max=version)
            raise_for_code(response.error_code)
            return response

        return await self.cluster.call_with_retries(attempt)

    async def _coordinator(self) -> int:
        """Return the transaction coordinator; the client library finds that of a group."""
        request = FindCoordinatorRequest(key=COPIER, key_type=1, coordinator_keys=[COPIER])
        response = await self.cluster.call(request)
        coordinator = response.coordinators[0] if response.coordinators else response
        raise_for_code(coordinator.error_code, coordinator.error_message)
        assert isinstance(coordinator.node_id, int)
        return coordinator.node_id
