"""EndTxn (26): commit or abort a transaction.

v2 knows PRODUCER_FENCED, v3 is flexible, v4 knows TRANSACTION_ABORTABLE, v5 answers with the producer's id and epoch
for its next transaction.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT16, INT32, INT64, STRING, message, wire


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
