"""Requests of operators and coordinators: list and describe transactions and producers, and write transaction markers.

Producers do not send these requests. A coordinator names the transaction version in its markers, operators do not. An
operator's marker is rejected if the coordinator is on this broker and includes the partition in a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.broker.handlers import ReportErrors, RequestContext
from headrace.broker.topic_catalogue import Catalogue
from headrace.broker.transactions.transaction_coordinator import TransactionCoordinator
from headrace.broker.transactions.transaction_markers import BUMPS_EPOCH, TransactionMarkers, TransactionOutcome
from headrace.broker.transactions.transaction_records import partitions_by_topic
from headrace.machines.transactions.transaction_state import ProducerIdAndEpoch, TransactionMetadata, TransactionStatus
from headrace.model.errors import (
    InvalidRequest,
    InvalidTopic,
    InvalidTransactionState,
    TransactionalIdNotFound,
)
from headrace.model.names import TRANSACTION_STATE, compiled
from headrace.runtime.inline_start import switch_to_task
from headrace.wire.messages.transactions import (
    DescribedTransactionState,
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsTopic,
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_BY_OPERATOR = 0  # in place of a transaction version
_UNUSED_STATES = ("PrepareEpochFence", "Dead")  # Kafka's names of states that do not occur in Headrace


class TransactionAdminRequests:
    def __init__(self, coordinator: TransactionCoordinator, catalogue: Catalogue, markers: TransactionMarkers) -> None:
        self._coordinator = coordinator
        self._catalogue = catalogue
        self._markers = markers

    async def describe(
        self, request: DescribeTransactionsRequest, _context: RequestContext
    ) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            transaction_states=[self._describe(transactional_id) for transactional_id in request.transactional_ids]
        )

    async def list(self, request: ListTransactionsRequest, _context: RequestContext) -> ListTransactionsResponse:
        self._coordinator.ensure_loaded()
        is_named = _id_matcher(request.transactional_id_pattern)
        states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
        known = {*TransactionStatus, *_UNUSED_STATES}
        return ListTransactionsResponse(
            unknown_state_filters=[state for state in request.state_filters if state not in known],
            transaction_states=[
                ListedTransactionState(
                    transactional_id=transaction.transactional_id,
                    producer_id=transaction.producer.id,
                    transaction_state=transaction.status,
                )
                for transaction in self._coordinator.transactions()
                if (not states or transaction.status in states)
                and (not producer_ids or transaction.producer.id in producer_ids)
                and (request.duration_filter < 0 or self._coordinator.running_ms(transaction) > request.duration_filter)
                and is_named(transaction)
            ],
        )

    async def describe_producers(
        self, request: DescribeProducersRequest, _context: RequestContext
    ) -> DescribeProducersResponse:
        return DescribeProducersResponse(
            topics=[
                DescribeProducersTopicResponse(
                    name=topic.name,
                    partitions=[self._producers_of(topic.name, index) for index in topic.partition_indexes],
                )
                for topic in request.topics
            ]
        )

    async def write_markers(self, request: WriteTxnMarkersRequest, _context: RequestContext) -> WriteTxnMarkersResponse:
        """Write the markers of all partitions concurrently; each waits until its marker is committed."""
        await switch_to_task()
        response = WriteTxnMarkersResponse()
        async with asyncio.TaskGroup() as tasks:
            for marker in request.markers:
                result = WritableTxnMarkerResult(producer_id=marker.producer_id)
                response.markers.append(result)
                for topic in marker.topics:
                    topic_result = WritableTxnMarkerTopicResult(name=topic.name)
                    result.topics.append(topic_result)
                    for index in topic.partition_indexes:
                        partition_result = WritableTxnMarkerPartitionResult(partition_index=index)
                        topic_result.partitions.append(partition_result)
                        tasks.create_task(self._write_marker(marker, topic.name, partition_result))
        return response

    def _describe(self, transactional_id: str) -> DescribedTransactionState:
        description = DescribedTransactionState(transactional_id=transactional_id)
        with ReportErrors(description):
            if not transactional_id:
                raise InvalidRequest("the transactional id is empty")
            transaction = self._coordinator.of(transactional_id).transactions.find(transactional_id)
            if transaction is None:
                raise TransactionalIdNotFound(f"transactional id {transactional_id} does not exist")
            return DescribedTransactionState(
                transactional_id=transactional_id,
                transaction_state=transaction.status,
                transaction_timeout_ms=transaction.timeout_ms,
                transaction_start_time_ms=transaction.start_ms,
                producer_id=transaction.producer.id,
                producer_epoch=transaction.producer.epoch,
                topics=[
                    DescribeTransactionsTopic(topic=topic, partitions=indexes)
                    for topic, indexes in partitions_by_topic(transaction.partitions).items()
                ],
            )
        return description

    def _producers_of(self, topic: str, index: int) -> DescribeProducersPartitionResponse:
        partition_result = DescribeProducersPartitionResponse(partition_index=index)
        with ReportErrors(partition_result):
            partition = self._catalogue.partition(topic, index)
            partition.ensure_readable()
            partition_result.active_producers = [
                ProducerState(
                    producer_id=known.producer_id,
                    producer_epoch=known.producer_epoch,
                    last_sequence=known.last_sequence,
                    last_timestamp=known.last_timestamp_ms,
                    coordinator_epoch=known.coordinator_epoch,
                    current_txn_start_offset=known.first_offset,
                )
                for known in partition.state.producers.describe()
            ]
        return partition_result

    async def _write_marker(
        self, marker: WritableTxnMarker, topic: str, partition_result: WritableTxnMarkerPartitionResult
    ) -> None:
        with ReportErrors(partition_result):
            outcome = self._outcome(marker, topic, partition_result.partition_index)
            await self._markers.write_marker(
                self._catalogue.partition(topic, partition_result.partition_index), outcome
            )

    def _outcome(self, marker: WritableTxnMarker, topic: str, index: int) -> TransactionOutcome:
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            raise InvalidRequest("a transaction marker requires a producer id and an epoch")
        if topic == TRANSACTION_STATE:
            raise InvalidTopic(f"topic {topic} is internal and has no transactions")
        if marker.transaction_version == _BY_OPERATOR:
            self._coordinator.ensure_loaded()
            holder = self._coordinator.holder(marker.producer_id, (topic, index))
            if holder is not None:
                raise InvalidTransactionState(
                    f"the transaction belongs to {holder.transactional_id} (state {holder.status}); end it with that "
                    "id, so that all its partitions have the same outcome"
                )
        return TransactionOutcome(
            ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch),
            max(marker.coordinator_epoch, 0),  # tools without a coordinator send -1
            marker.transaction_result,
            bumps_epoch=marker.transaction_version == BUMPS_EPOCH,
        )


def _id_matcher(pattern: str | None) -> Callable[[TransactionMetadata], bool]:
    """Return a filter of transactions by their id; without a pattern it accepts all."""
    if not pattern:
        return lambda _: True
    fullmatch = compiled(pattern).fullmatch
    return lambda transaction: fullmatch(transaction.transactional_id) is not None
