"""Producer ids, transactions and joint commits."""

from __future__ import annotations

from headrace.wire.codec.schema import BOOL, INT8, INT16, INT32, INT64, STRING, array, message, part, wire

# InitProducerId (22): allocate a producer id, or increment the epoch of a transactional producer. v2 is flexible; v3
# lets a producer increment its own epoch; v4 adds PRODUCER_FENCED, v5 implicit transactions.


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


# AddPartitionsToTxn (24): add partitions to a transaction, so that they will get its markers. v2 adds
# PRODUCER_FENCED; v3 is flexible; v4 is for brokers: several transactions per request, which are only verified with
# `verify_only`; v5 adds TRANSACTION_ABORTABLE.


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


# AddOffsetsToTxn (25): add the offsets of a group to a transaction. v2 adds PRODUCER_FENCED; v3 is flexible; v4 adds
# TRANSACTION_ABORTABLE.


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


# EndTxn (26): commit or abort a transaction. v2 adds PRODUCER_FENCED; v3 is flexible; v4 adds TRANSACTION_ABORTABLE;
# v5 returns the producer id and epoch of the next transaction.


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


# WriteTxnMarkers (27): a coordinator or an operator ends transactions in their partitions. `transaction_result` true
# is a commit. v2 adds the version of the transaction protocol.


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


# ListTransactions (66): list the transactional ids that this broker coordinates. v1 filters by a minimum duration in
# ms, v2 by a regular expression.


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


# DescribeTransactions (65): return the coordinator's state of transactional ids.


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


# DescribeProducers (61): return the producers of a partition, and the start of their open transactions.


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


# EndBundle (10014, Headrace): commit or abort the transactions of several producers atomically (a joint commit). The
# coordinator of the bundle responds.


@part
class BundleMember:
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)


@message(versions=(0, 0), flexible_since=0)
class EndBundleRequest:
    """`sequence` applies to a commit only. `digest` identifies the content of the commit and is stored with it; it is
    empty if unknown."""

    bundle: str = wire(STRING)
    sequence: int = wire(INT64, default=-1)
    is_commit: bool = wire(BOOL)
    members: list[BundleMember] = wire(array(BundleMember))
    digest: str = wire(STRING, tag=0)


@message(versions=(0, 0), flexible_since=0)
class EndBundleResponse:
    """`is_committed` is true after a commit by this or an earlier request with the same members. Otherwise, without an
    error, all open transactions of the members are aborted. `sequence` is the last committed one of the bundle."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    is_committed: bool = wire(BOOL)
    sequence: int = wire(INT64, default=-1)


# DescribeBundle (10013, Headrace): return the last joint commit of a bundle. The coordinator of the bundle responds.


@message(versions=(0, 0), flexible_since=0)
class DescribeBundleRequest:
    bundle: str = wire(STRING)


@message(versions=(0, 0), flexible_since=0)
class DescribeBundleResponse:
    """`sequence` is -1 if the bundle has committed nothing or has expired. `digest` is that of the commit."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    sequence: int = wire(INT64, default=-1)
    members: list[BundleMember] = wire(array(BundleMember))
    digest: str = wire(STRING, tag=0)
