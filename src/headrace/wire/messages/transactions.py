"""Producer ids, transactions and joint commits."""

from __future__ import annotations

from headrace.wire.codec.schema import BOOL, INT8, INT16, INT32, INT64, STRING, array, message, part, wire

# InitProducerId (22): an id for an idempotent producer, or the next epoch of a transactional one.
#
# v2 is flexible, v3 lets a producer bump its own epoch, v4 knows PRODUCER_FENCED, v5 implicit transactions.


@message(versions=(0, 5), flexible_since=2)
class InitProducerIdRequest:
    transactional_id: str | None = wire(STRING, nullable=0, default=None)
    transaction_timeout_ms: int = wire(INT32)
    producer_id: int = wire(INT64, since=3, default=-1)
    producer_epoch: int = wire(INT16, since=3, default=-1)


@message(versions=(0, 5), flexible_since=2)
class InitProducerIdResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    producer_id: int = wire(INT64, default=-1)
    producer_epoch: int = wire(INT16)


# AddPartitionsToTxn (24): these partitions take part in the transaction; its markers must reach them.
#
# v2 knows PRODUCER_FENCED, v3 is flexible. v4 is for brokers: many transactions at once, with a question instead of an
# addition if `verify_only`. v5 knows TRANSACTION_ABORTABLE.


@part
class AddPartitionsToTxnTopic:
    name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@part
class AddPartitionsToTxnTransaction:
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    verify_only: bool = wire(BOOL)
    topics: list[AddPartitionsToTxnTopic] = wire(array(AddPartitionsToTxnTopic))


@message(versions=(0, 5), flexible_since=3)
class AddPartitionsToTxnRequest:
    transactions: list[AddPartitionsToTxnTransaction] = wire(array(AddPartitionsToTxnTransaction), since=4)
    v3_and_below_transactional_id: str = wire(STRING, until=3)
    v3_and_below_producer_id: int = wire(INT64, until=3)
    v3_and_below_producer_epoch: int = wire(INT16, until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = wire(array(AddPartitionsToTxnTopic), until=3)


@part
class AddPartitionsToTxnPartitionResult:
    partition_index: int = wire(INT32)
    partition_error_code: int = wire(INT16)


@part
class AddPartitionsToTxnTopicResult:
    name: str = wire(STRING)
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = wire(array(AddPartitionsToTxnPartitionResult))


@part
class AddPartitionsToTxnResult:
    transactional_id: str = wire(STRING)
    topic_results: list[AddPartitionsToTxnTopicResult] = wire(array(AddPartitionsToTxnTopicResult))


@message(versions=(0, 5), flexible_since=3)
class AddPartitionsToTxnResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16, since=4)
    results_by_transaction: list[AddPartitionsToTxnResult] = wire(array(AddPartitionsToTxnResult), since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = wire(
        array(AddPartitionsToTxnTopicResult), until=3
    )


# AddOffsetsToTxn (25): the transaction will commit offsets of this group.
#
# v2 knows PRODUCER_FENCED, v3 is flexible, v4 knows TRANSACTION_ABORTABLE.


@message(versions=(0, 4), flexible_since=3)
class AddOffsetsToTxnRequest:
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    group_id: str = wire(STRING)


@message(versions=(0, 4), flexible_since=3)
class AddOffsetsToTxnResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)


# EndTxn (26): commit or abort a transaction.
#
# v2 knows PRODUCER_FENCED, v3 is flexible, v4 knows TRANSACTION_ABORTABLE, v5 answers with the producer's id and epoch
# for its next transaction.


@message(versions=(0, 5), flexible_since=3)
class EndTxnRequest:
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    committed: bool = wire(BOOL)


@message(versions=(0, 5), flexible_since=3)
class EndTxnResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    producer_id: int = wire(INT64, since=5, default=-1)
    producer_epoch: int = wire(INT16, since=5, default=-1)


# WriteTxnMarkers (27): a coordinator, or an operator, ends transactions in the partitions that they wrote to.
#
# `transaction_result` is true for a commit. v2 tells which version of the transaction protocol the marker obeys.


@part
class WritableTxnMarkerTopic:
    name: str = wire(STRING)
    partition_indexes: list[int] = wire(array(INT32))


@part
class WritableTxnMarker:
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    transaction_result: bool = wire(BOOL)
    topics: list[WritableTxnMarkerTopic] = wire(array(WritableTxnMarkerTopic))
    coordinator_epoch: int = wire(INT32)
    transaction_version: int = wire(INT8, since=2)


@message(versions=(1, 2), flexible_since=1)
class WriteTxnMarkersRequest:
    markers: list[WritableTxnMarker] = wire(array(WritableTxnMarker))


@part
class WritableTxnMarkerPartitionResult:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@part
class WritableTxnMarkerTopicResult:
    name: str = wire(STRING)
    partitions: list[WritableTxnMarkerPartitionResult] = wire(array(WritableTxnMarkerPartitionResult))


@part
class WritableTxnMarkerResult:
    producer_id: int = wire(INT64)
    topics: list[WritableTxnMarkerTopicResult] = wire(array(WritableTxnMarkerTopicResult))


@message(versions=(1, 2), flexible_since=1)
class WriteTxnMarkersResponse:
    markers: list[WritableTxnMarkerResult] = wire(array(WritableTxnMarkerResult))


# ListTransactions (66): the transactional ids that this broker coordinates.
#
# v1 selects those open for longer than `duration_filter` ms, v2 by a regular expression.


@message(versions=(0, 2), flexible_since=0)
class ListTransactionsRequest:
    state_filters: list[str] = wire(array(STRING))
    producer_id_filters: list[int] = wire(array(INT64))
    duration_filter: int = wire(INT64, since=1, default=-1)
    transactional_id_pattern: str | None = wire(STRING, since=2, nullable=2, default=None)


@part
class ListedTransactionState:
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    transaction_state: str = wire(STRING)


@message(versions=(0, 2), flexible_since=0)
class ListTransactionsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    unknown_state_filters: list[str] = wire(array(STRING))
    transaction_states: list[ListedTransactionState] = wire(array(ListedTransactionState))


# DescribeTransactions (65): what the coordinator knows of transactional ids.


@message(versions=(0, 0), flexible_since=0)
class DescribeTransactionsRequest:
    transactional_ids: list[str] = wire(array(STRING))


@part
class DescribeTransactionsTopic:
    topic: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@part
class DescribedTransactionState:
    error_code: int = wire(INT16)
    transactional_id: str = wire(STRING)
    transaction_state: str = wire(STRING)
    transaction_timeout_ms: int = wire(INT32)
    transaction_start_time_ms: int = wire(INT64)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    topics: list[DescribeTransactionsTopic] = wire(array(DescribeTransactionsTopic))


@message(versions=(0, 0), flexible_since=0)
class DescribeTransactionsResponse:
    throttle_time_ms: int = wire(INT32)
    transaction_states: list[DescribedTransactionState] = wire(array(DescribedTransactionState))


# DescribeProducers (61): the producers that a partition remembers, and where their open transactions begin.


@part
class DescribeProducersTopic:
    name: str = wire(STRING)
    partition_indexes: list[int] = wire(array(INT32))


@message(versions=(0, 0), flexible_since=0)
class DescribeProducersRequest:
    topics: list[DescribeProducersTopic] = wire(array(DescribeProducersTopic))


@part
class ProducerState:
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT32)
    last_sequence: int = wire(INT32, default=-1)
    last_timestamp: int = wire(INT64, default=-1)
    coordinator_epoch: int = wire(INT32)
    current_txn_start_offset: int = wire(INT64, default=-1)


@part
class DescribeProducersPartitionResponse:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    active_producers: list[ProducerState] = wire(array(ProducerState))


@part
class DescribeProducersTopicResponse:
    name: str = wire(STRING)
    partitions: list[DescribeProducersPartitionResponse] = wire(array(DescribeProducersPartitionResponse))


@message(versions=(0, 0), flexible_since=0)
class DescribeProducersResponse:
    throttle_time_ms: int = wire(INT32)
    topics: list[DescribeProducersTopicResponse] = wire(array(DescribeProducersTopicResponse))


# EndBundle (10014, our own): the transactions of these members commit as one, or are aborted. To their coordinator.


@part
class BundleMember:
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)


@message(versions=(0, 0), flexible_since=0)
class EndBundleRequest:
    """`sequence` counts for a commit only; the members of an abort have none. `digest` names what the commit is for; it
    is stored with it. Empty: unknown."""

    bundle: str = wire(STRING)
    sequence: int = wire(INT64, default=-1)
    is_commit: bool = wire(BOOL)
    members: list[BundleMember] = wire(array(BundleMember))
    digest: str = wire(STRING, tag=0)


@message(versions=(0, 0), flexible_since=0)
class EndBundleResponse:
    """`is_committed`: now, or by an earlier ask with the same members. Else, without an error, whatever of the members
    was open is aborted. `sequence`: the last that the bundle has committed."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    is_committed: bool = wire(BOOL)
    sequence: int = wire(INT64, default=-1)


# DescribeBundle (10013, our own): the last sequence that a bundle has committed, and by whom. To its coordinator.


@message(versions=(0, 0), flexible_since=0)
class DescribeBundleRequest:
    bundle: str = wire(STRING)


@message(versions=(0, 0), flexible_since=0)
class DescribeBundleResponse:
    """`sequence` is -1 for a bundle that has committed nothing, or is not known any more. `digest` as it was given with
    the commit."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    sequence: int = wire(INT64, default=-1)
    members: list[BundleMember] = wire(array(BundleMember))
    digest: str = wire(STRING, tag=0)
