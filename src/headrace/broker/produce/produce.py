"""Produce, versions 3 to 13. The partitions of a request are independent: some may fail while others succeed.

- Batches are validated and appended before the first await, so the batches of a connection are appended in the order in
  which they were sent. If a batch has to wait before it can be appended (decompression of a large batch, or adding a
  partition to a transaction), the connection processes no later requests meanwhile.
- The bytes of the request are in the receive buffer of the connection, which is not accessed after the first await.
- A transactional batch is appended only if the partition is durably part of the producer's open transaction. The check
  and the append run without an await in between; otherwise the transaction marker could miss the batch.
- In a topic with a dedup window, duplicates are removed from a batch in the same step in which it is appended
  (`dedup_windows.py`).
- The response is sent when everything is on the disks of all in-sync replicas (acks=all), or on the disk of this broker
  (acks=1). With acks=0 there is no response, and an error closes the connection.
- A broker whose registry session may have expired accepts only acks=all, since with acks=1 no other broker confirms
  that it is still the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.broker.handlers import RequestContext
from headrace.broker.partition import Partition
from headrace.broker.produce.batch_rules import check_batch, needs_worker_thread, prepare_batch
from headrace.broker.produce.dedup_windows import DedupIds, DedupWindows, read_dedup_ids
from headrace.broker.produce.sequence_gap_guard import ProducerPartition, SequenceGapGuard, gap_in_new_term
from headrace.broker.topic_catalogue import Catalogue
from headrace.broker.transactions.transaction_verification import TransactionVerification
from headrace.model.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidRecords,
    InvalidRequiredAcks,
    InvalidTopic,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeader,
    ProducerFenced,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.model.names import DELAYED_PREFIX, is_internal
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk
from headrace.storage.store.log_store import LogStore
from headrace.wire.batches.batch import BatchHeader, parse_header
from headrace.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

_ACKS_ALL = -1
_ACKS_NONE = 0
_TOPIC_IDS_SINCE = 13
_ADDS_PARTITIONS_SINCE = 12  # KIP-890: producers no longer send AddPartitionsToTxn
_WAITING_BYTES_MAX = 64 << 20
_CHECKED_ON_LOOP_MAX = 1 << 16  # maximum bytes of a batch that is decoded on the event loop


class _PendingAppend:
    """The batch of one partition, and its response."""

    __slots__ = ("batch", "crc_payload", "header", "ids", "is_large", "partition", "partition_response", "topic")

    def __init__(
        self,
        topic: TopicProduceData,
        batch: memoryview,
        partition_response: PartitionProduceResponse,
        partition: Partition,
        header: BatchHeader,
    ) -> None:
        self.topic = topic
        self.batch = batch
        self.partition_response = partition_response
        self.partition = partition
        self.header = header
        self.ids: DedupIds | None = None  # only if the topic has a dedup window
        config = partition.config
        self.is_large = needs_worker_thread(header, config) or (
            config.dedup_window_ms > 0 and header.size_bytes > _CHECKED_ON_LOOP_MAX
        )
        # Only for large batches: an item lives until its batch is durable, and should not keep a copy that long.
        self.crc_payload: bytes | None = None


class ProduceHandler:
    def __init__(
        self,
        catalogue: Catalogue,
        transactions: TransactionVerification,
        dedup: DedupWindows,
        store: LogStore,
        disk: Disk,
        clock: Clock,
        session_valid: Callable[[], bool],
    ) -> None:
        self._catalogue = catalogue
        self._transactions = transactions
        self._dedup = dedup
        self._store = store
        self._session_valid = session_valid
        self._gap_guard = SequenceGapGuard()
        self._disk = disk
        self._clock = clock
        # One at a time: decompression must not occupy the disk threads that fsync needs.
        self._unpacking = asyncio.Semaphore(1)
        self._waiting_bytes = 0  # size of batch copies that wait for decompression

    async def handle(self, request: ProduceRequest, context: RequestContext) -> ProduceResponse | None:
        response = ProduceResponse()
        items: list[_PendingAppend] = []
        must_wait = False
        for topic in request.topic_data:
            partition_responses = []
            for data in topic.partition_data:
                partition_response = PartitionProduceResponse(index=data.index)
                partition_responses.append(partition_response)
                try:
                    item = self._check_batch(request, topic, data, partition_response, context.version)
                except HeadraceError as error:
                    self._record_rejection(topic, data, error)
                    _set_error(partition_response, error)
                    continue
                must_wait = must_wait or item.is_large or self._must_add_to_transaction(request, item)
                items.append(item)
            response.responses.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=partition_responses)
            )
        if must_wait:
            items = await self._prepare_pending(request, items, context)
        deadline = None if request.acks == _ACKS_NONE else self._clock.monotonic() + max(request.timeout_ms, 0) / 1000
        waits = self._append_all(request, items, deadline)
        if must_wait:
            context.release()
        if request.acks == _ACKS_NONE:
            if any(
                partition_response.error_code
                for topic in response.responses
                for partition_response in topic.partition_responses
            ):
                context.close_connection()
            return None
        for partition_response, wait in waits:
            try:
                await wait
            except HeadraceError as error:
                _set_error(partition_response, error)
        return response

    def _check_batch(
        self,
        request: ProduceRequest,
        topic: TopicProduceData,
        data: PartitionProduceData,
        partition_response: PartitionProduceResponse,
        version: int,
    ) -> _PendingAppend:
        if request.acks not in (-1, 0, 1):
            raise InvalidRequiredAcks(f"acks must be -1, 0 or 1, not {request.acks}")
        partition = self._partition(topic, data.index, version)
        batch = data.records
        header, crc_payload = check_batch(
            batch, version, partition.config, self._clock.now_ms(), request.transactional_id
        )
        assert batch is not None
        item = _PendingAppend(topic, batch, partition_response, partition, header)
        if item.is_large:
            item.crc_payload = crc_payload
        else:
            _prepare_batch(item, crc_payload)
        return item

    def _partition(self, topic: TopicProduceData, index: int, version: int) -> Partition:
        if version >= _TOPIC_IDS_SINCE:
            partition = self._catalogue.partition_by_id(topic.topic_id, index)
            _ensure_not_internal(partition.topic)
            return partition
        _ensure_not_internal(topic.name)
        return self._catalogue.partition(topic.name, index)

    def _must_add_to_transaction(self, request: ProduceRequest, item: _PendingAppend) -> bool:
        """Whether this broker does not know yet that the partition is part of the transaction. Newer clients rely on
        the leader to add it; for older ones the coordinator on another broker may have added it."""
        if not item.header.is_transactional:
            return False
        try:
            self._verify_transaction(request, item)
        except HeadraceError:
            return True
        return False

    async def _prepare_pending(
        self, request: ProduceRequest, items: list[_PendingAppend], context: RequestContext
    ) -> list[_PendingAppend]:
        """Decompress large batches in disk threads and add partitions to their transactions; return the items that have
        not failed. The connection processes no other requests meanwhile."""
        context.hold()
        size_bytes = sum(len(item.batch) for item in items)
        if self._waiting_bytes and self._waiting_bytes + size_bytes > _WAITING_BYTES_MAX:
            busy = RequestTimedOut("too many compressed batches are waiting for validation; retry")
            for item in items:
                self._reject(item, busy)
            return []
        for item in items:
            # The receive buffer is overwritten during the await.
            item.batch = memoryview(bytearray(item.batch))
        self._waiting_bytes += size_bytes
        try:
            items = [item for item in items if not item.is_large or await self._is_sound(item)]
            if request.transactional_id is not None:
                adds = context.version >= _ADDS_PARTITIONS_SINCE
                items = await self._add_to_transaction(request.transactional_id, items, adds=adds)
            return items
        finally:
            self._waiting_bytes -= size_bytes

    async def _is_sound(self, item: _PendingAppend) -> bool:
        try:
            async with self._unpacking:
                await self._disk.run(_prepare_batch, item, item.crc_payload)
        except HeadraceError as error:
            self._reject(item, error)
            return False
        return True

    async def _add_to_transaction(
        self, transactional_id: str, items: list[_PendingAppend], *, adds: bool
    ) -> list[_PendingAppend]:
        """Add the partitions to the producer's transaction; return the items that have not failed."""
        by_producer: dict[tuple[int, int], list[_PendingAppend]] = {}
        for item in items:
            if item.header.is_transactional:
                producer = item.header.producer_id, item.header.producer_epoch
                by_producer.setdefault(producer, []).append(item)
        failed: set[_PendingAppend] = set()
        for (producer_id, producer_epoch), together in by_producer.items():
            try:
                await self._transactions.add_to_transaction(
                    transactional_id, producer_id, producer_epoch, [item.partition for item in together], adds=adds
                )
            except HeadraceError as error:
                failed.update(together)
                for item in together:
                    self._reject(item, _as_producer_error(error))
        return [item for item in items if item not in failed]

    def _verify_transaction(self, request: ProduceRequest, item: _PendingAppend) -> None:
        header = item.header
        assert request.transactional_id is not None, "validated with the batch"
        try:
            self._transactions.verify(
                request.transactional_id, header.producer_id, header.producer_epoch, item.partition
            )
        except HeadraceError as error:
            raise _as_producer_error(error) from error

    def _ensure_committable(self, partition: Partition, acks: int, *, session_valid: bool) -> None:
        """Raise unless an acknowledged batch would be durable. With acks=all the in-sync replicas confirm that this
        broker is still the leader; a partition with a single replica cannot have another leader."""
        if partition.writes_suspended:
            raise NotLeader(f"this broker may no longer be the leader of {partition.topic}-{partition.index}")
        if acks == _ACKS_ALL:
            partition.ensure_min_isr()
        elif not session_valid:
            raise NotLeader(
                f"this broker may no longer be the leader of {partition.topic}-{partition.index}; use acks=all"
            )

    def _append_all(
        self, request: ProduceRequest, items: list[_PendingAppend], deadline: float | None
    ) -> list[tuple[PartitionProduceResponse, asyncio.Future[None]]]:
        """Append all batches; return the responses that must wait, and their futures. Without a deadline none wait."""
        waits = []
        now_ms = self._clock.now_ms()
        gap_guard = self._gap_guard
        session_valid = request.acks == _ACKS_ALL or self._session_valid()
        for item in items:
            partition, partition_response = item.partition, item.partition_response
            try:
                if gap_guard:
                    place = _producer_partition(item.topic, partition_response.index)
                    gap_guard.check_no_gap(place, item.header, partition.state.producers, self._clock.monotonic())
                self._store.space.ensure()
                self._ensure_committable(partition, request.acks, session_valid=session_valid)
                if item.header.is_transactional:
                    self._verify_transaction(request, item)
                if partition.config.dedup_window_ms:
                    appended = self._dedup.append(partition, item.batch, item.header, item.ids, now_ms)
                else:
                    appended = partition.append(item.batch, item.header, now_ms)
                if deadline is None:
                    wait = None
                elif request.acks == _ACKS_ALL:
                    wait = partition.committed(appended.end_offset, deadline)
                else:
                    wait = partition.durable(appended.end_offset, deadline)
            except HeadraceError as error:
                self._reject(item, gap_in_new_term(error, item.header, partition, self._clock.monotonic()))
                continue
            if gap_guard:
                gap_guard.record_append(_producer_partition(item.topic, partition_response.index), item.header)
            partition_response.base_offset = appended.base_offset
            partition_response.log_append_time_ms = appended.log_append_time_ms
            partition_response.log_start_offset = partition.log.start_offset
            partition.counts.produced(len(item.batch), item.header.record_count)
            if wait is not None:
                waits.append((partition_response, wait))
        return waits

    def _reject(self, item: _PendingAppend, error: HeadraceError) -> None:
        item.partition.counts.failed_produces += 1
        self._gap_guard.record_rejection(
            _producer_partition(item.topic, item.partition_response.index), item.header, error, self._clock.monotonic()
        )
        _set_error(item.partition_response, error)

    def _record_rejection(self, topic: TopicProduceData, data: PartitionProduceData, error: HeadraceError) -> None:
        """Record an error of a batch that is malformed, or not validated because this broker is not its leader."""
        known = self._catalogue.find(topic.name) or self._catalogue.find_by_id(topic.topic_id)
        if known is not None:
            known.counts.failed_produces += 1
        if isinstance(error, NotLeader | UnknownTopicOrPartition | UnknownTopicId) and data.records is not None:
            try:
                header = parse_header(data.records)
            except HeadraceError:
                return
            self._gap_guard.record_rejection(
                _producer_partition(topic, data.index), header, error, self._clock.monotonic()
            )


def _producer_partition(topic: TopicProduceData, index: int) -> ProducerPartition:
    return topic.name, topic.topic_id, index


def _prepare_batch(item: _PendingAppend, crc_payload: bytes | None) -> None:
    """Decode the records of a batch, possibly in a disk thread, which has exclusive access to the item meanwhile."""
    config = item.partition.config
    item.batch, item.header = prepare_batch(item.batch, item.header, crc_payload, config)
    if config.dedup_window_ms:
        item.ids = read_dedup_ids(item.batch, item.header)


def _as_producer_error(error: HeadraceError) -> HeadraceError:
    """Translate an error of the coordinator for producers, which do not expect coordinator errors from Produce."""
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(error.message)
    if isinstance(error, CoordinatorLoading | CoordinatorNotAvailable | NotCoordinator | ConcurrentTransactions):
        return NotEnoughReplicas(error.message)
    return error


def _ensure_not_internal(topic: str) -> None:
    if is_internal(topic) and not topic.startswith(DELAYED_PREFIX):
        raise InvalidTopic(f"topic {topic} is internal: only brokers can write to it")


def _set_error(partition_response: PartitionProduceResponse, error: HeadraceError) -> None:
    partition_response.error_code = error.code
    partition_response.error_message = error.message
    if isinstance(error, InvalidRecords):
        partition_response.record_errors = [BatchIndexAndErrorMessage(index, why) for index, why in error.records]
    partition_response.base_offset = -1
    partition_response.log_append_time_ms = -1
    partition_response.log_start_offset = -1
