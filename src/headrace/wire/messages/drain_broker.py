"""DrainBroker (10000, our own): an operator wants a broker to hold nothing, or to take part again."""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT16, INT32, STRING, message, wire


@message(versions=(0, 0), flexible_since=0)
class DrainBrokerRequest:
    broker_id: int = wire(INT32)
    is_drained: bool = wire(BOOL, default=True)


@message(versions=(0, 0), flexible_since=0)
class DrainBrokerResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
