"""What operators ask: which transactions there are, what partitions know of producers, and the end of one that hangs.

These requests go to whoever looks after the cluster; producers never send them.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.catalogue import Catalogue
from headrace.broker.context import RequestContext
from headrace.broker.transaction_coordinator import TransactionCoordinator
from headrace.broker.transaction_records import by_topic
from headrace.machines.transaction_state import Producer, Transaction, TransactionStatus
from headrace.model.errors import (
    HeadraceError,
    InvalidRequest,
    InvalidTopic,
    TransactionalIdNotFound,
)
from headrace.model.names import TRANSACTION_STATE
from headrace.model.patterns import compiled
from headrace.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from headrace.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from headrace.wire.messages.describe_transactions import TransactionState as DescribedTransaction
from headrace.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from headrace.wire.messages.list_transactions import TransactionState as ListedTransaction
from headrace.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_NEVER_SEEN = ("PrepareEpochFence", "Dead")  # Kafka's names for states that no id of ours is ever in


class TransactionTools:
    def __init__(self, coordinator: TransactionCoordinator, catalogue: Catalogue) -> None:
        self._coordinator = coordinator
        self._catalogue = catalogue

    async def describe(
        self, request: DescribeTransactionsRequest, _context: RequestContext
    ) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            transaction_states=[self._describe(transactional_id) for transactional_id in request.transactional_ids]
        )

    async def list(self, request: ListTransactionsRequest, _context: RequestContext) -> ListTransactionsResponse:
        try:
            self._coordinator.ensure_loaded()
            is_named = _named(request.transactional_id_pattern)
        except HeadraceError as error:
            return ListTransactionsResponse(error_code=error.code)
        states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
        known = {*TransactionStatus, *_NEVER_SEEN}
        return ListTransactionsResponse(
            unknown_state_filters=[state for state in request.state_filters if state not in known],
            transaction_states=[
                ListedTransaction(
                    transactional_id=transaction.transactional_id,
                    producer_id=transaction.producer.id,
                    transaction_state=transaction.status,
                )
                for transaction in self._coordinator.transactions
                if (not states or transaction.status in states)
                and (not producer_ids or transaction.producer.id in producer_ids)
                and (request.duration_filter < 0 or self._coordinator.open_ms(transaction) > request.duration_filter)
                and is_named(transaction)
            ],
        )

    async def describe_producers(
        self, request: DescribeProducersRequest, _context: RequestContext
    ) -> DescribeProducersResponse:
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=topic.name,
                    partitions=[self._producers_of(topic.name, index) for index in topic.partition_indexes],
                )
                for topic in request.topics
            ]
        )

    async def write_markers(self, request: WriteTxnMarkersRequest, _context: RequestContext) -> WriteTxnMarkersResponse:
        response = WriteTxnMarkersResponse()
        for marker in request.markers:
            result = WritableTxnMarkerResult(producer_id=marker.producer_id)
            for topic in marker.topics:
                told = WritableTxnMarkerTopicResult(name=topic.name)
                for index in topic.partition_indexes:
                    code = await self._write_marker(marker, topic.name, index)
                    told.partitions.append(WritableTxnMarkerPartitionResult(partition_index=index, error_code=code))
                result.topics.append(told)
            response.markers.append(result)
        return response

    def _describe(self, transactional_id: str) -> DescribedTransaction:
        try:
            if not transactional_id:
                raise InvalidRequest("the transactional id is empty")
            self._coordinator.ensure_loaded(transactional_id)
            transaction = self._coordinator.transactions.find(transactional_id)
            if transaction is None:
                raise TransactionalIdNotFound(f"there is no transactional id {transactional_id}")
        except HeadraceError as error:
            return DescribedTransaction(error_code=error.code, transactional_id=transactional_id)
        return DescribedTransaction(
            transactional_id=transactional_id,
            transaction_state=transaction.status,
            transaction_timeout_ms=transaction.timeout_ms,
            transaction_start_time_ms=transaction.start_ms,
            producer_id=transaction.producer.id,
            producer_epoch=transaction.producer.epoch,
            topics=[
                TopicData(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(transaction.partitions).items()
            ],
        )

    def _producers_of(self, topic: str, index: int) -> PartitionResponse:
        answer = PartitionResponse(partition_index=index)
        try:
            partition = self._catalogue.partition(topic, index)
            partition.ensure_readable()
        except HeadraceError as error:
            answer.error_code, answer.error_message = error.code, error.message
            return answer
        answer.active_producers = [
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
        return answer

    async def _write_marker(self, marker: WritableTxnMarker, topic: str, index: int) -> int:
        try:
            if marker.producer_id < 0 or marker.producer_epoch < 0:
                raise InvalidRequest("a marker ends the transaction of a producer, and names it by its id and epoch")
            if topic == TRANSACTION_STATE:
                raise InvalidTopic(f"nobody writes transactions to {topic}")
            await self._coordinator.write_marker(
                self._catalogue.partition(topic, index),
                Producer(marker.producer_id, marker.producer_epoch),
                max(marker.coordinator_epoch, 0),  # tools that know of no coordinator say -1
                is_commit=marker.transaction_result,
            )
        except HeadraceError as error:
            return error.code
        return 0


def _named(pattern: str | None) -> Callable[[Transaction], bool]:
    """Whether a transaction's id is one that the pattern describes; without a pattern all are."""
    if not pattern:
        return lambda _: True
    fullmatch = compiled(pattern).fullmatch
    return lambda transaction: fullmatch(transaction.transactional_id) is not None
