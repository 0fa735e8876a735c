"""InitProducerId (22): an id for an idempotent producer, or the next epoch of a transactional one.

v2 is flexible, v3 lets a producer bump its own epoch, v4 knows PRODUCER_FENCED, v5 implicit transactions.
"""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, INT64, STRING, message, wire


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
