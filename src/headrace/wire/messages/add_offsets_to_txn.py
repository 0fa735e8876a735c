"""AddOffsetsToTxn (25): the transaction will commit offsets of this group.

v2 knows PRODUCER_FENCED, v3 is flexible, v4 knows TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, INT64, STRING, message, wire


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
