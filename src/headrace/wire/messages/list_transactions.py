"""ListTransactions (66): the transactional ids that this broker coordinates.

v1 selects those open for longer than `duration_filter` ms, v2 by a regular expression.
"""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, INT64, STRING, array, message, part, wire


@message(versions=(0, 2), flexible_since=0)
class ListTransactionsRequest:
    state_filters: list[str] = wire(array(STRING))
    producer_id_filters: list[int] = wire(array(INT64))
    duration_filter: int = wire(INT64, since=1, default=-1)
    transactional_id_pattern: str | None = wire(STRING, since=2, nullable=2, default=None)


@part
class TransactionState:
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    transaction_state: str = wire(STRING)


@message(versions=(0, 2), flexible_since=0)
class ListTransactionsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    unknown_state_filters: list[str] = wire(array(STRING))
    transaction_states: list[TransactionState] = wire(array(TransactionState))
