"""AddPartitionsToTxn (24): these partitions take part in the transaction; its markers must reach them.

v2 knows PRODUCER_FENCED, v3 is flexible. v4 is for brokers: many transactions at once, with a question instead of an
addition if `verify_only`. v5 knows TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT16, INT32, INT64, STRING, array, message, part, wire


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
