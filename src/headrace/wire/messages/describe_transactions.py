"""DescribeTransactions (65): what the coordinator knows of transactional ids."""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, INT64, STRING, array, message, part, wire


@message(versions=(0, 0), flexible_since=0)
class DescribeTransactionsRequest:
    transactional_ids: list[str] = wire(array(STRING))


@part
class TopicData:
    topic: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@part
class TransactionState:
    error_code: int = wire(INT16)
    transactional_id: str = wire(STRING)
    transaction_state: str = wire(STRING)
    transaction_timeout_ms: int = wire(INT32)
    transaction_start_time_ms: int = wire(INT64)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    topics: list[TopicData] = wire(array(TopicData))


@message(versions=(0, 0), flexible_since=0)
class DescribeTransactionsResponse:
    throttle_time_ms: int = wire(INT32)
    transaction_states: list[TransactionState] = wire(array(TransactionState))
