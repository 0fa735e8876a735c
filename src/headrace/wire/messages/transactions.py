"""Producer ids, transactions and joint commits."""

from __future__ import annotations

from headrace.wire.codec.schema import BOOL, INT8, INT16, INT32, INT64, STRING, ApiMessage, Part, array, wire

# InitProducerId (22): allocate a producer id, or increment the epoch of a transactional producer. v2 is flexible; v3
# lets a producer increment its own epoch; v4 adds PRODUCER_FENCED, v5 implicit transactions.


class InitProducerIdRequest(ApiMessage, versions=(0, 5), flexible_since=2):
    transactional_id: str | None = wire(STRING, nullable=0, default=None)
    transaction_timeout_ms: int = wire(INT32)
    producer_id: int = wire(INT64, since=3, default=-1)
    producer_epoch: int = wire(INT16, since=3, default=-1)


class InitProducerIdResponse(ApiMessage, versions=(0, 5), flexible_since=2):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    producer_id: int = wire(INT64, default=-1)
    producer_epoch: int = wire(INT16)


# AddPartitionsToTxn (24): add partitions to a transaction, so that they will get its markers. v2 adds
# PRODUCER_FENCED; v3 is flexible; v4 is for brokers: several transactions per request, which are only verified with
# `verify_only`; v5 adds TRANSACTION_ABORTABLE.


class AddPartitionsToTxnTopic(Part):
    name: str = wire(STRING)
    partitions: list[int] = array(INT32)


class AddPartitionsToTxnTransaction(Part):
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    verify_only: bool = wire(BOOL)
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic)


class AddPartitionsToTxnRequest(ApiMessage, versions=(0, 5), flexible_since=3):
    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, since=4)
    v3_and_below_transactional_id: str = wire(STRING, until=3)
    v3_and_below_producer_id: int = wire(INT64, until=3)
    v3_and_below_producer_epoch: int = wire(INT16, until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, until=3)


class AddPartitionsToTxnPartitionResult(Part):
    partition_index: int = wire(INT32)
    partition_error_code: int = wire(INT16)


class AddPartitionsToTxnTopicResult(Part):
    name: str = wire(STRING)
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult)


class AddPartitionsToTxnResult(Part):
    transactional_id: str = wire(STRING)
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult)


class AddPartitionsToTxnResponse(ApiMessage, versions=(0, 5), flexible_since=3):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16, since=4)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, until=3)


# AddOffsetsToTxn (25): add the offsets of a group to a transaction. v2 adds PRODUCER_FENCED; v3 is flexible; v4 adds
# TRANSACTION_ABORTABLE.


class AddOffsetsToTxnRequest(ApiMessage, versions=(0, 4), flexible_since=3):
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    group_id: str = wire(STRING)


class AddOffsetsToTxnResponse(ApiMessage, versions=(0, 4), flexible_since=3):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)


# EndTxn (26): commit or abort a transaction. v2 adds PRODUCER_FENCED; v3 is flexible; v4 adds TRANSACTION_ABORTABLE;
# v5 returns the producer id and epoch of the next transaction.


class EndTxnRequest(ApiMessage, versions=(0, 5), flexible_since=3):
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    committed: bool = wire(BOOL)


class EndTxnResponse(ApiMessage, versions=(0, 5), flexible_since=3):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    producer_id: int = wire(INT64, since=5, default=-1)
    producer_epoch: int = wire(INT16, since=5, default=-1)


# WriteTxnMarkers (27): a coordinator or an operator ends transactions in their partitions. `transaction_result` true
# is a commit. v2 adds the version of the transaction protocol.


class WritableTxnMarkerTopic(Part):
    name: str = wire(STRING)
    partition_indexes: list[int] = array(INT32)


class WritableTxnMarker(Part):
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    transaction_result: bool = wire(BOOL)
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = wire(INT32)
    transaction_version: int = wire(INT8, since=2)


class WriteTxnMarkersRequest(ApiMessage, versions=(1, 2), flexible_since=1):
    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


class WritableTxnMarkerPartitionResult(Part):
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


class WritableTxnMarkerTopicResult(Part):
    name: str = wire(STRING)
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


class WritableTxnMarkerResult(Part):
    producer_id: int = wire(INT64)
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


class WriteTxnMarkersResponse(ApiMessage, versions=(1, 2), flexible_since=1):
    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)


# ListTransactions (66): list the transactional ids that this broker coordinates. v1 filters by a minimum duration in
# ms, v2 by a regular expression.


class ListTransactionsRequest(ApiMessage, versions=(0, 2), flexible_since=0):
    state_filters: list[str] = array(STRING)
    producer_id_filters: list[int] = array(INT64)
    duration_filter: int = wire(INT64, since=1, default=-1)
    transactional_id_pattern: str | None = wire(STRING, since=2, nullable=2, default=None)


class ListedTransactionState(Part):
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    transaction_state: str = wire(STRING)


class ListTransactionsResponse(ApiMessage, versions=(0, 2), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    unknown_state_filters: list[str] = array(STRING)
    transaction_states: list[ListedTransactionState] = array(ListedTransactionState)


# DescribeTransactions (65): return the coordinator's state of transactional ids.


class DescribeTransactionsRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    transactional_ids: list[str] = array(STRING)


class DescribeTransactionsTopic(Part):
    topic: str = wire(STRING)
    partitions: list[int] = array(INT32)


class DescribedTransactionState(Part):
    error_code: int = wire(INT16)
    transactional_id: str = wire(STRING)
    transaction_state: str = wire(STRING)
    transaction_timeout_ms: int = wire(INT32)
    transaction_start_time_ms: int = wire(INT64)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    topics: list[DescribeTransactionsTopic] = array(DescribeTransactionsTopic)


class DescribeTransactionsResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    transaction_states: list[DescribedTransactionState] = array(DescribedTransactionState)


# DescribeProducers (61): return the producers of a partition, and the start of their open transactions.


class DescribeProducersTopic(Part):
    name: str = wire(STRING)
    partition_indexes: list[int] = array(INT32)


class DescribeProducersRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    topics: list[DescribeProducersTopic] = array(DescribeProducersTopic)


class ProducerState(Part):
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT32)
    last_sequence: int = wire(INT32, default=-1)
    last_timestamp: int = wire(INT64, default=-1)
    coordinator_epoch: int = wire(INT32)
    current_txn_start_offset: int = wire(INT64, default=-1)


class DescribeProducersPartitionResponse(Part):
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    active_producers: list[ProducerState] = array(ProducerState)


class DescribeProducersTopicResponse(Part):
    name: str = wire(STRING)
    partitions: list[DescribeProducersPartitionResponse] = array(DescribeProducersPartitionResponse)


class DescribeProducersResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    topics: list[DescribeProducersTopicResponse] = array(DescribeProducersTopicResponse)


# EndBundle (10014, Headrace): commit or abort the transactions of several producers atomically (a joint commit). The
# coordinator of the bundle responds.


class BundleMember(Part):
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)


class EndBundleRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    """`sequence` applies to a commit only. `digest` identifies the content of the commit and is stored with it; it is
    empty if unknown."""

    bundle: str = wire(STRING)
    sequence: int = wire(INT64, default=-1)
    is_commit: bool = wire(BOOL)
    members: list[BundleMember] = array(BundleMember)
    digest: str = wire(STRING, tag=0)


class EndBundleResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    """`is_committed` is true after a commit by this or an earlier request with the same members. Otherwise, without an
    error, all open transactions of the members are aborted. `sequence` is the last committed one of the bundle."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    is_committed: bool = wire(BOOL)
    sequence: int = wire(INT64, default=-1)


# DescribeBundle (10013, Headrace): return the last joint commit of a bundle. The coordinator of the bundle responds.


class DescribeBundleRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    bundle: str = wire(STRING)


class DescribeBundleResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    """`sequence` is -1 if the bundle has committed nothing or has expired. `digest` is that of the commit."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    sequence: int = wire(INT64, default=-1)
    members: list[BundleMember] = array(BundleMember)
    digest: str = wire(STRING, tag=0)
