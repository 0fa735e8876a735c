"""DescribeProducers (61): the producers that a partition remembers, and where their open transactions begin."""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, INT64, STRING, array, message, part, wire


@part
class TopicRequest:
    name: str = wire(STRING)
    partition_indexes: list[int] = wire(array(INT32))


@message(versions=(0, 0), flexible_since=0)
class DescribeProducersRequest:
    topics: list[TopicRequest] = wire(array(TopicRequest))


@part
class ProducerState:
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT32)
    last_sequence: int = wire(INT32, default=-1)
    last_timestamp: int = wire(INT64, default=-1)
    coordinator_epoch: int = wire(INT32)
    current_txn_start_offset: int = wire(INT64, default=-1)


@part
class PartitionResponse:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    active_producers: list[ProducerState] = wire(array(ProducerState))


@part
class TopicResponse:
    name: str = wire(STRING)
    partitions: list[PartitionResponse] = wire(array(PartitionResponse))


@message(versions=(0, 0), flexible_since=0)
class DescribeProducersResponse:
    throttle_time_ms: int = wire(INT32)
    topics: list[TopicResponse] = wire(array(TopicResponse))
