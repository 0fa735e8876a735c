"""WriteTxnMarkers (27): a coordinator, or an operator, ends transactions in the partitions that they wrote to.

`transaction_result` is true for a commit. v2 tells which version of the transaction protocol the marker obeys.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT8, INT16, INT32, INT64, STRING, array, message, part, wire


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
